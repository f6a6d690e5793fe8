"""The proof that codes in fp32 are the specification's, on a small model: it passes, sees an error, and goes on after a
tie as the specification does."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from decode_checks.accuracy import Picks, described, in_float64, partings, summary, widened
from decode_checks.compare import TIE, compare
from decode_checks.drawing import checksum, draw_talker, drawn, talker_config
from decode_checks.forcing import KeptLogits, heads_of, plain_logits, speak, speak_forced, speak_with_logits
from decode_checks.near import near_picks
from decode_checks.specification import NearPicker, Specification, make_specification, specification_rows

from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.backends.native.decode.weights import store_for_kernels
from qwen3tts.backends.torch.frame_decoder import TorchFrameDecoder
from qwen3tts.model.sampling import SamplingParams, pick_philox

WAVES = (64,)
FRAMES, SEEDS, GROUPS = 5, (1, 2), 4
CPU = torch.device("cpu")


def small():
    """A model of few and narrow products."""
    config = talker_config("tiny-mtp")
    thin = replace(config.transformer, num_layers=1)
    inner = replace(config.code_predictor, transformer=replace(config.code_predictor.transformer, num_layers=1))
    return replace(config, transformer=thin, code_predictor=inner, num_code_groups=GROUPS)


@pytest.fixture(scope="module")
def made():
    return make_specification(draw_talker(small(), torch.float32, CPU), "small", FRAMES, SEEDS, lambda text: None)


@pytest.fixture
def core_of(native):
    """core_of(talker, padding) -> a core without graphs."""
    forms = []

    def make(talker, padding, slots=3):
        forms.append(store_for_kernels(talker))
        return NativeFrameDecoder(
            native, talker, padding, slots=slots, max_positions=256, kv_bytes=None, kv_positions=256 * slots,
            frames_per_replay=3, graphs=False,
        )  # fmt: skip

    yield make
    for form in forms:
        form.restore()


# ------------------------------------------------------------ values


def test_values_are_a_function_of_name_and_seed_and_nearly_normal():
    a = drawn("a", (300, 401), 2.0, 0.5, 1, CPU)
    assert a.dtype == torch.bfloat16
    assert torch.equal(a, drawn("a", (300, 401), 2.0, 0.5, 1, CPU))
    assert torch.equal(a.flatten()[:100], drawn("a", (100,), 2.0, 0.5, 1, CPU))
    assert abs(float(a.float().mean()) - 0.5) < 0.03
    assert abs(float(a.float().std()) - 2.0) < 0.03
    for other in (drawn("b", (300, 401), 2.0, 0.5, 1, CPU), drawn("a", (300, 401), 2.0, 0.5, 2, CPU)):
        pair = torch.stack((a.flatten(), other.flatten())).float()
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.02
        assert checksum(other) != checksum(a)
    assert checksum(torch.cat((a[1:], a[:1]))) != checksum(a)
    # The same on every machine: these numbers are part of what is carried.
    assert drawn("row", (4,), 1.0, 0.0, 7, CPU).tolist() == EXPECTED
    assert draw_talker(small(), torch.float32, CPU).checksum == EXPECTED_SUM


EXPECTED = [-1.9453125, 0.58203125, -0.09033203125, -0.63671875]
EXPECTED_SUM = 774808048145019817

# ------------------------------------------------------------ near picks


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_pick_turns_into_what_it_is_near_to(seed, top_p):
    """Of logits moved by less than the distance the pick never turns; moved past it, it turns into the near code."""
    generator = torch.Generator().manual_seed(seed)
    params, turned = SamplingParams(True, 0.8, 20, top_p), 0
    for _ in range(300):
        logits = torch.randn(60, generator=generator) * 3
        word = int(torch.randint(2**32, (), generator=generator))
        picked = int(pick_philox(logits, params, torch.tensor(word)))
        nearest = near_picks(logits, params, word, picked)[0]
        # Moves that shall change nothing are small, or several candidates would leave the prefix of top_p at once.
        for scale in (0.2 * min(nearest.distance, 0.02), 3.0 * nearest.distance):
            noise = (torch.rand(60, generator=generator) * 2 - 1) * scale
            other = int(pick_philox(logits + noise, params, torch.tensor(word)))
            if scale < nearest.distance:
                assert other == picked, (nearest, picked, other)
            elif other == nearest.code:
                turned += 1
    assert turned > 30


def test_a_greedy_pick_is_near_to_the_second_best():
    logits = torch.tensor([1.0, 4.0, 3.75, -2.0])
    params = SamplingParams(False, 1.0, 0, 1.0)
    (near,) = near_picks(logits, params, 0, 1)
    assert (near.code, near.distance) == (2, 0.25)
    with pytest.raises(ValueError, match="was not drawn"):
        near_picks(logits, SamplingParams(True, 1.0, 2, 1.0), 0, 2)


# ------------------------------------------------------------ the proof


def test_a_right_core_passes_and_its_file_is_read_back(core_of, made, native, tmp_path):
    made.save(tmp_path / "specification.npz")
    read = Specification.load(tmp_path / "specification.npz")
    assert (read.preset, read.checksum, read.facts) == (made.preset, made.checksum, made.facts)
    model = draw_talker(small(), torch.float32, native.device)
    assert model.checksum == read.checksum
    found = compare(core_of(model.talker, model.padding), model.talker, read)
    assert not found.failed, found.differences
    assert found.picks == 2 * len(SEEDS) * FRAMES * GROUPS


def test_a_planted_error_fails(core_of, made, native):
    model = draw_talker(small(), torch.float32, native.device)
    core = core_of(model.talker, model.padding)
    model.talker.code_predictor.model.layers[0].self_attn.q_norm.weight.data *= 1.05
    found = compare(core, model.talker, made, lambda text: None)
    assert found.failed
    assert any(not d.tie for d in found.differences)


def test_after_a_tie_the_core_goes_on_as_the_specification(core_of, native):
    """Ties are played: a specification that picks the second best at two places and calls that near."""
    places = {(1, 2, 3): 1e-5, (1, 3, 0): 1e-5, (3, 0, 0): 1e-5}
    model = draw_talker(small(), torch.float32, CPU)
    rows = specification_rows(model.talker, FRAMES, SEEDS)

    def turned(distances):
        picker = Turning(model.talker, rows, distances)
        decoder = plain_decoder(model, len(rows))
        decoder.picker = picker
        codes = torch.stack(speak(decoder, rows, 1)).to(torch.int16).numpy()
        near = np.array(picker.places, np.int16), np.array(picker.distances, np.float32)
        return Specification("small", model.checksum, codes, *near, {})

    model_there = draw_talker(small(), torch.float32, native.device)
    core = core_of(model_there.talker, model_there.padding)
    found = compare(core, model_there.talker, turned(places), lambda text: None)
    assert [(d.row, d.frame, d.codebook) for d in found.differences if d.tie] == list(places)
    assert not found.failed
    far = compare(core, model_there.talker, turned(places | {(1, 2, 3): 2 * TIE}), lambda text: None)
    assert far.failed


class Turning(NearPicker):
    """Picks something else at some places."""

    def __init__(self, talker, rows, distances):
        super().__init__(talker, rows)
        self.turns = distances

    def _note(self, row, codebook, logits, params, picked):
        """Nothing is near but what is turned."""

    def _turn(self, rows, codebook, logits, codes):
        for i, row in enumerate(rows):
            place = (self.numbers[id(row.request)], row.frames, codebook)
            if place in self.turns:
                second = logits[i].clone()
                second[codes[i]] = -torch.inf
                self.places.append((*place, int(codes[i])))
                self.distances.append(self.turns[place])
                codes[i] = second.argmax()
        return codes

    def predictor(self, rows, codebook, logits):
        return self._turn(rows, codebook, logits, super().predictor(rows, codebook, logits))

    def talker(self, rows, logits):
        before = [row.seen.clone() for row in rows]
        codes = self._turn(rows, 0, logits.masked_fill(self._suppressed, -torch.inf), super().talker(rows, logits))
        for row, seen, code in zip(rows, before, codes, strict=True):
            row.seen = seen
            row.seen[code] = True
        return codes


def plain_decoder(model, slots):
    return TorchFrameDecoder(model.talker, model.padding, slots=slots, max_positions=256, kv_bytes=None)


# ------------------------------------------------------------ logits


def test_logits_of_the_core_are_those_of_the_plain_model_on_the_same_codes(core_of, native):
    model = draw_talker(small(), torch.float32, native.device)
    core = core_of(model.talker, model.padding, 2)
    rows = specification_rows(model.talker, FRAMES, SEEDS)[1:3]
    kept, plain = (KeptLogits(model.talker, 2, FRAMES) for _ in range(2))
    codes = speak_with_logits(core, model.talker, rows, kept)
    assert all(torch.equal(a, b) for a, b in zip(codes, speak(core, rows, 2), strict=True))
    plain_logits(model.talker, model.padding, rows, codes, plain)
    vocabulary = [weight.shape[0] for weight in heads_of(model.talker)]
    for book, size in enumerate(vocabulary):
        got, want = kept.values[:, :, book], plain.values[:, :, book]
        assert torch.isfinite(got[..., :size]).all()
        assert got[..., size:].isnan().all()
        torch.testing.assert_close(got[..., :size], want[..., :size], rtol=1e-4, atol=1e-4)
    alone, forced = KeptLogits(model.talker, 1, FRAMES), {(2, 1): int(codes[0][2, 1])}
    assert torch.equal(speak_forced(core, model.talker, rows[0], forced, alone), codes[0])
    assert alone.values[2, 0, 1].isnan().all()
    alone.values[2, 0, 1] = kept.values[2, 0, 1]
    assert torch.equal(alone.values[:, 0].nan_to_num(), kept.values[:, 0].nan_to_num())
    assert core.pages.used == 0


def test_float64_tells_apart_how_exact_logits_are(core_of, native):
    model = draw_talker(small(), torch.float32, native.device)
    core = core_of(model.talker, model.padding, 2)
    rows = specification_rows(model.talker, FRAMES, SEEDS)[1:3]
    kept = {name: KeptLogits(model.talker, 2, FRAMES) for name in ("core", "plain", "damaged")}
    wide = KeptLogits(model.talker, 2, FRAMES, torch.float64)
    codes = speak_with_logits(core, model.talker, rows, kept["core"])
    plain_logits(model.talker, model.padding, rows, codes, kept["plain"])
    doubled = in_float64(model.talker)
    plain_logits(doubled, model.padding.double(), widened(rows, torch.float64), codes, wide)
    for name in ("core", "plain"):
        found = summary(kept[name], wide)
        assert all(1e-8 < value < 3e-6 for value in found.values()), (name, found)
    model.talker.codec_head.weight.data += 0.01 * model.talker.codec_head.weight.data.roll(1, 0)
    plain_logits(model.talker, model.padding, rows, codes, kept["damaged"])
    found = summary(kept["damaged"], wide)
    assert 5e-3 < found["talker_rms"] < 2e-2
    assert found["predictor_largest"] < 3e-6
    kept["damaged"].values[2, 1, 3, int(codes[1][2, 3])] -= 20.0
    picks = Picks(model.talker, rows, codes)
    parted = [p for p in partings(picks, kept | {"float64": wide}, "float64") if p.codebook]
    assert [(p.row, p.frame, p.codebook) for p in parted] == [(1, 2, 3)]
    assert parted[0].codes["core"] == parted[0].codes["float64"] == int(codes[1][2, 3]) != parted[0].codes["damaged"]
    assert described(parted[0])["error"]["damaged"] > 19
