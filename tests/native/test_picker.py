"""The native picker in the frame decoder: the codes of the plain one, whatever rows come, pause and go."""

import pytest
import torch

import qwen3tts
from qwen3tts.backends.native.picker import NativePicker
from qwen3tts.backends.torch.picking import RowPicker
from qwen3tts.errors import NumericsError
from qwen3tts.model.sampling import SamplingParams
from qwen3tts.runtime.protocols import RowRequest

TALKER = (
    SamplingParams(True, 0.9, 50, 1.0),
    SamplingParams(True, 1.4, 0, 0.9),
    SamplingParams(False, 1.0, 0, 1.0),
    SamplingParams(True, 0.5, 3, 0.99),
)


@pytest.fixture
def decoder(native, tiny_checkpoint):
    with qwen3tts.load(tiny_checkpoint(eos_gain=1.0), device=native.device, backend="torch", dtype="float32") as tts:
        yield tts.engine.runtime.frames


def requests(decoder, generator, count):
    """Rows that differ in everything; the last one waits for its text."""
    talker = decoder.talker
    width = talker.config.transformer.hidden_size

    def draw(rows):
        return torch.randn(rows, width, generator=generator).to(talker.device)

    return [
        RowRequest(
            prefill=draw(3 + i),
            trailing=draw(2),
            talker=TALKER[i % 4],
            predictor=TALKER[(i + 1) % 4],
            repetition_penalty=(1.05, 1.0, 2.0)[i % 3],
            seed=2**40 * i + 5,
            part=i % 2,
            max_frames=9 - i,
            text_complete=i < count - 1,
        )
        for i in range(count)
    ]


def speak(decoder, rows, more):
    """Codes of a life with everything in it: rows in a pause, added text, a late row, a release."""
    slots = decoder.admit(rows)
    made = [decoder.advance(4)]
    decoder.add_text(slots[-1], more, True)
    late = decoder.admit(rows[:1])
    made += [decoder.advance(2), decoder.advance(1, slots[1:2])]
    decoder.release(slots[0])
    made += [decoder.advance(3), decoder.advance(30)]
    for slot in (*slots, *late):
        decoder.release(slot)
    return [
        (batch.counts, batch.finished, [codes[:n].tolist() for codes, n in zip(batch.codes, batch.counts, strict=True)])
        for batch in made
    ]


def test_codes_equal_the_plain_picker(native, decoder, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = requests(decoder, generator, 4)
    more = torch.randn(2, rows[0].prefill.shape[1], generator=generator).to(native.device)
    plain = decoder.picker
    want = speak(decoder, rows, more)
    assert sum(sum(counts) for counts, _, _ in want) > 12
    decoder.picker = NativePicker(native, decoder.talker)
    assert speak(decoder, rows, more) == want
    assert speak(decoder, rows, more) == want, "a second life of the same picker"
    decoder.picker = plain
    assert speak(decoder, rows, more) == want


def test_a_released_row_is_forgotten(native, decoder, seed):
    decoder.picker = NativePicker(native, decoder.talker)
    (slot,) = decoder.admit(requests(decoder, torch.Generator().manual_seed(seed), 2)[:1])
    decoder.advance(1)
    (reference,) = decoder.picker._rows
    assert reference() is not None
    decoder.release(slot)
    assert reference() is None


def test_rows_with_a_torch_generator_are_picked_as_before(native, decoder, seed):
    rows = requests(decoder, torch.Generator().manual_seed(seed), 3)[:2]
    results = []
    for picker in (RowPicker(decoder.talker), NativePicker(native, decoder.talker)):
        decoder.picker = picker
        drawing = torch.Generator(native.device).manual_seed(7)
        mixed = [RowRequest(**(vars(rows[0]) | {"generator": drawing})), rows[1]]
        slots = decoder.admit(mixed)
        first = decoder.advance(3)
        decoder.release(slots[0])
        results.append((first.codes.tolist(), decoder.advance(2).codes.tolist()))
        decoder.release(slots[1])
    assert results[0] == results[1]


@pytest.mark.parametrize("part", ["talker", "code_predictor"])
def test_logits_that_are_not_finite_are_refused(native, decoder, seed, part):
    decoder.picker = NativePicker(native, decoder.talker)
    slots = decoder.admit(requests(decoder, torch.Generator().manual_seed(seed), 3)[:2])
    decoder.advance(1)
    talker = decoder.talker
    head = talker.codec_head if part == "talker" else talker.code_predictor.lm_head[4]
    with torch.no_grad():
        head.weight[3] = torch.nan
    with pytest.raises(NumericsError, match="not finite"):
        decoder.advance(1)
    for slot in slots:
        decoder.release(slot)
