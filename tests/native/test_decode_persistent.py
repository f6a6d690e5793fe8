"""The code predictor of one row as one kernel: the codes and logits of the launched kernels, bit for bit, frame after
frame; and that these tests would see words that are read too early, and a kernel that waits in vain ends."""

import random
from dataclasses import replace

import pytest
import torch

import qwen3tts
from qwen3tts.backends.native import open_native
from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.backends.native.decode.weights import store_for_kernels
from qwen3tts.checkpoint.config import parse_config
from qwen3tts.checkpoint.json_object import JsonObject
from qwen3tts.errors import BackendError
from qwen3tts.model.sampling import SamplingParams
from qwen3tts.model.talker import Talker
from qwen3tts.runtime.protocols import RowRequest
from qwen3tts.synthetic.configs import build_configs

FRAMES = 40
GREEDY = SamplingParams(False, 1.0, 0, 1.0)
SETTINGS = (
    GREEDY,
    SamplingParams(True, 0.9, 50, 1.0),
    SamplingParams(True, 0.9, 1, 1.0),
    SamplingParams(True, 2.5, 64, 0.8),
    SamplingParams(True, 0.05, 20, 0.5),
    SamplingParams(True, 0.9, 65, 1.0),
    SamplingParams(True, 0.9, 300, 0.95),
    SamplingParams(True, 0.9, 0, 1.0),
    SamplingParams(True, 1.3, 0, 0.9),
    SamplingParams(True, 0.9, 2048, 1.0),
)


@pytest.fixture(scope="module")
def cuda():
    native = open_native("cuda")
    if torch.cuda.get_device_capability(native.device)[0] < 9:
        pytest.skip("the kernel needs a card of compute capability 9.0")
    return native


@pytest.fixture(scope="module", params=["0.6b", "1.7b"])
def talker(request, cuda):
    """The released code predictor with random weights behind a talker of two layers."""
    ids = {"vocab": 100, "assistant": 1, "im_end": 2, "im_start": 3, "tts_bos": 4, "tts_eos": 5, "tts_pad": 6}
    config, codec = build_configs(request.param, "custom_voice", ids, "4.57.2")
    parsed = parse_config(JsonObject("config.json", "", config), JsonObject("codec", "", codec)).talker
    parsed = replace(parsed, transformer=replace(parsed.transformer, num_layers=2))
    with torch.device("meta"):
        made = Talker(parsed)
    made.to_empty(device=cuda.device)
    generator = torch.Generator(cuda.device).manual_seed(3)
    for name, parameter in made.named_parameters():
        scale = 0.5 if "embedding" in name else (2.5 if "head" in name else 1.0) / parameter.shape[-1] ** 0.5
        drawn = torch.randn(parameter.shape, generator=generator, device=cuda.device)
        parameter.data = (drawn * scale if parameter.ndim > 1 else 1 + 0.1 * drawn).bfloat16()
    made.codec_head.weight.data[parsed.codec_eos_id] = 0
    with torch.inference_mode():
        made.eval().prepare(256)
    return made.requires_grad_(False)


def core_of(cuda, talker, **options):
    padding = torch.zeros(talker.config.transformer.hidden_size, device=cuda.device, dtype=talker.dtype)
    return NativeFrameDecoder(
        cuda, talker, padding, slots=2, max_positions=200, kv_bytes=None, frames_per_replay=4, **options
    )


def request_of(talker, rng, predictor, frames=FRAMES):
    generator = torch.Generator(talker.device).manual_seed(rng.randrange(2**40))
    x = torch.randn(12, talker.config.transformer.hidden_size, generator=generator, device=talker.device)
    return RowRequest(
        prefill=x[:9].to(talker.dtype), trailing=x[9:].to(talker.dtype), talker=SamplingParams(True, 0.9, 50, 1.0),
        predictor=predictor, repetition_penalty=1.05, seed=rng.randrange(2**64), part=rng.randrange(3),
        max_frames=frames,
    )  # fmt: skip


def speak(core, row, step=FRAMES):
    (slot,) = core.admit([row])
    try:
        made = [core.advance(step, [slot]).codes[0] for _ in range(0, row.max_frames, step)]
    finally:
        core.release(slot)
    return torch.cat(made)


@pytest.mark.gpu
def test_codes_are_those_of_the_launched_kernels_in_every_setting(cuda, talker, seed):
    rng = random.Random(seed)
    whole, launched = core_of(cuda, talker), core_of(cuda, talker, persistent_predictor=False)
    assert whole.persistent_problem == ""
    assert launched.persistent_problem == "it is switched off"
    rows = [request_of(talker, rng, params) for params in SETTINGS]
    wanted = [speak(launched, row) for row in rows]
    for _ in range(3):
        for row, codes in zip(rows, wanted, strict=True):
            assert torch.equal(speak(whole, row, rng.choice([1, 4, FRAMES])), codes), row.predictor


@pytest.mark.gpu
def test_logits_are_those_of_the_launched_kernels(cuda, talker, seed):
    rng = random.Random(seed)
    config, kept = talker.config, []
    row = request_of(talker, rng, SETTINGS[1], frames=6)
    for persistent in (True, False):
        core = core_of(cuda, talker, persistent_predictor=persistent, graphs=False)
        logits = torch.zeros(config.num_code_groups, 2, config.vocab_size, device=cuda.device)
        core.launches.core.keep_logits(logits.data_ptr())
        speak(core, row)
        kept.append(logits[1:, 0].flatten()[: (config.num_code_groups - 2) * 2 * config.vocab_size].clone())
    assert torch.equal(*kept)
    assert kept[0].abs().sum() > 0


@pytest.mark.gpu
def test_rows_beside_others_are_launched_with_the_same_codes(cuda, talker, seed):
    rng = random.Random(seed)
    core = core_of(cuda, talker)
    rows = [request_of(talker, rng, params) for params in rng.sample(SETTINGS, 2)]
    alone = [speak(core, row) for row in rows]
    slots = core.admit(rows)
    together = core.advance(FRAMES, slots)
    assert torch.equal(together.codes[0], alone[0])
    assert torch.equal(together.codes[1], alone[1])
    core.release(slots[0])
    core.release(slots[1])


@pytest.mark.gpu
def test_words_that_do_not_say_for_which_use_they_are_would_be_seen(cuda, talker, seed):
    rng = random.Random(seed)
    core = core_of(cuda, talker, graphs=False)
    row = request_of(talker, rng, SETTINGS[1])
    codes = speak(core, row)
    core.launches.core.disturb_predictor(1, 10**9)
    assert not torch.equal(speak(core, row), codes)
    core.launches.core.disturb_predictor(0, 10**9)
    core.launches.core.clear_exchange(cuda.stream())
    assert torch.equal(speak(core, row), codes)


@pytest.mark.gpu
def test_a_kernel_that_waits_in_vain_ends_and_the_next_speech_is_right(cuda, talker, seed):
    rng = random.Random(seed)
    core = core_of(cuda, talker, graphs=False)
    row = request_of(talker, rng, SETTINGS[1])
    codes = speak(core, row)
    core.launches.core.disturb_predictor(2, 20_000_000)
    with pytest.raises(BackendError, match="waited for each other in vain"):
        speak(core, row)
    core.launches.core.disturb_predictor(0, 10**9)
    assert torch.equal(speak(core, row), codes)


@pytest.mark.parametrize(
    ("dtype", "wanted", "problem"),
    [
        ("float32", True, "the model is not in bf16"),
        ("bfloat16", True, "the code predictor has not the released models' sizes"),
        ("bfloat16", False, "it is switched off"),
    ],
)
def test_where_it_does_not_fit_the_kernels_are_launched(native, tiny_checkpoint, dtype, wanted, problem):
    with qwen3tts.load(tiny_checkpoint(), device=native.device, backend="torch", dtype=dtype) as tts:
        talker = tts.engine.runtime.talker
        form = store_for_kernels(talker)
        core = core_of(native, talker, persistent_predictor=wanted, graphs=False)
        assert core.persistent_problem == problem
        rng = random.Random(1)
        assert speak(core, request_of(talker, rng, GREEDY, frames=2)).shape == (2, talker.config.num_code_groups)
        core.close()
        form.restore()
