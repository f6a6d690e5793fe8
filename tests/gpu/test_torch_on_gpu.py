"""The plain torch backend on a GPU: equal codes in fp32, exact arithmetic, the same draws as on the CPU."""

import random

import numpy as np
import pytest
import torch

import qwen3tts
from qwen3tts import GenerateOptions, Voice
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.model.philox import random_words
from qwen3tts.model.sampling import SamplingParams, exp_weights, pick_greedy, pick_philox

pytestmark = pytest.mark.gpu
TEXTS = ["Hello.", "The voice speaks to the world and to the user, and on and on.", "今日は晴れ", "Größe: 12 Stück?"]
GREEDY = {"do_sample": False, "subtalker_dosample": False}


@pytest.fixture(scope="module")
def gpu():
    return torch.device("cuda", 0)


@pytest.mark.parametrize(("preset", "model_type"), [("tiny", "custom_voice"), ("tiny-mtp", "base")])
@pytest.mark.parametrize("sampled", [False, True])
def test_codes_equal_the_cpu_in_fp32(tiny_checkpoint, gpu, seed, preset, model_type, sampled):
    folder = tiny_checkpoint(model_type, preset=preset, seed=4, eos_gain=1.5)
    pick = random.Random(seed)
    options = [
        GenerateOptions(seed=pick.randrange(2**64), max_frames=pick.randrange(8, 40), **({} if sampled else GREEDY))
        for _ in TEXTS
    ]
    voice = "ryan" if model_type == "custom_voice" else Voice.from_x_vector(np.random.default_rng(seed).normal(size=64))
    with (
        qwen3tts.load(folder, backend="cpu") as on_cpu,
        qwen3tts.load(folder, backend="torch", device=gpu, dtype="float32") as on_gpu,
    ):
        expected = on_cpu.generate(TEXTS, voice, options=options)
        found = on_gpu.generate(TEXTS, voice, options=options)
        for text, option, a, b in zip(TEXTS, options, expected, found, strict=True):
            assert np.array_equal(a.codes, b.codes)
            assert a.finish_reason == b.finish_reason
            assert float(np.abs(a.samples - b.samples).max()) <= 1e-4
            assert np.array_equal(on_gpu.generate(text, voice, options=option).codes, b.codes), "alone as in the batch"


def test_draws_equal_the_cpu_bit_for_bit(gpu, seed):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(-rng.uniform(0, 18, 100_000).astype(np.float32))
    assert torch.equal(exp_weights(x), exp_weights(x.to(gpu)).cpu())
    for size in (1, 64, 2048, 3072):
        for _ in range(20):
            logits = np.round(rng.standard_normal(size) * 12) / 4 if rng.random() < 0.5 else rng.standard_normal(size)
            logits = torch.from_numpy(logits.astype(np.float32))
            params = SamplingParams(
                True, float(rng.uniform(0.2, 2)), int(rng.choice([0, 1, 50, 256])), float(rng.choice([1.0, 0.8]))
            )
            word = torch.tensor(int(random_words(int(rng.integers(2**62)), 0, 1, 1)[0, 0]))
            assert pick_philox(logits, params, word) == pick_philox(logits.to(gpu), params, word.to(gpu)).cpu()
            assert pick_greedy(logits) == pick_greedy(logits.to(gpu)).cpu()


def test_products_and_convolutions_are_not_tf32(gpu, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(256, 1024, generator=generator), torch.randn(1024, 256, generator=generator)
    signal, kernel = torch.randn(1, 64, 512, generator=generator), torch.randn(64, 64, 7, generator=generator)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with exact_arithmetic(gpu):
            product = (a.to(gpu) @ b.to(gpu)).cpu()
            filtered = torch.nn.functional.conv1d(signal.to(gpu), kernel.to(gpu)).cpu()
        loose = (a.to(gpu) @ b.to(gpu)).cpu()
    finally:
        torch.set_float32_matmul_precision(before)
    exact = a.double() @ b.double()
    assert float((product - exact).abs().max()) < 2e-4
    assert float((filtered - torch.nn.functional.conv1d(signal.double(), kernel.double())).abs().max()) < 2e-4
    if torch.cuda.get_device_capability(gpu) >= (8, 0):
        assert float((loose - exact).abs().max()) > 2e-3, "the application's own setting is TF32 and is left alone"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes_agree_with_the_cpu_at_first(tiny_checkpoint, gpu, dtype):
    options = GenerateOptions(max_frames=4, **GREEDY)
    with (
        qwen3tts.load(tiny_checkpoint(), backend="cpu", dtype=dtype) as on_cpu,
        qwen3tts.load(tiny_checkpoint(), backend="torch", device=gpu, dtype=dtype) as on_gpu,
    ):
        a, b = (tts.generate("Hello.", "ryan", options=options) for tts in (on_cpu, on_gpu))
    assert a.codes[0, 0] == b.codes[0, 0]
    assert np.isfinite(b.samples).all()


def test_auto_takes_the_gpu_in_bfloat16(tiny_checkpoint):
    with qwen3tts.load(tiny_checkpoint()) as tts:
        assert tts.device.type == "cuda"
        assert tts.dtype == torch.bfloat16
        assert tts.generate("Hello.", "ryan", options=GenerateOptions(max_frames=3)).frames == 3


def test_memory_is_given_back(tiny_checkpoint, gpu):
    with qwen3tts.load(tiny_checkpoint(), device=gpu) as tts:
        tts.generate("Hello.", "ryan", options=GenerateOptions(max_frames=3))
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            tts.generate(TEXTS, "ryan", options=GenerateOptions(max_frames=20))
        assert torch.cuda.memory_allocated() <= before + 2**20
    assert torch.cuda.memory_allocated() < before


def test_streams_equal_the_one_shot_audio(tiny_checkpoint, gpu):
    with qwen3tts.load(tiny_checkpoint(), device=gpu, dtype="float32") as tts:
        options = GenerateOptions(seed=3, max_frames=30)
        chunks = list(tts.stream(TEXTS[1], "ryan", options=options))
        whole = tts.generate(TEXTS[1], "ryan", options=options.replace(text_mode="streamed"))
        assert np.array_equal(np.concatenate([chunk.codes for chunk in chunks]), whole.codes)
        assert float(np.abs(np.concatenate([chunk.samples for chunk in chunks]) - whole.samples).max()) <= 1e-5
        stream = tts.open_text_stream("ryan", options=options)
        for word in TEXTS[1].split(" "):
            stream.push_text(word + " ")
        stream.finish()
        pieces = list(stream)
        expected = tts.generate(
            TEXTS[1], "ryan", options=options.replace(text_mode="streamed", text_lookahead_tokens=stream.lookahead)
        )
        assert np.array_equal(np.concatenate([chunk.codes for chunk in pieces]), expected.codes)


def test_clones_equal_the_cpus(tiny_checkpoint, gpu, seed):
    rng = np.random.default_rng(seed)
    recording = (0.2 * rng.standard_normal(30_000)).astype(np.float32)
    folder, options = tiny_checkpoint("base", seed=2), GenerateOptions(seed=seed, max_frames=10)
    with (
        qwen3tts.load(folder, backend="cpu") as on_cpu,
        qwen3tts.load(folder, device=gpu, dtype="float32") as on_gpu,
    ):
        a, b = (tts.clone((recording, 24_000), "The user and the world.") for tts in (on_cpu, on_gpu))
        assert float((a.ref_codes == b.ref_codes).mean()) > 0.98, "near ties between codebook entries may differ"
        scale = float(np.abs(a.x_vector).max())
        assert float(np.abs(a.x_vector - b.x_vector).max()) <= 1e-4 * scale
        spoken = [tts.generate(TEXTS[1], a, options=options) for tts in (on_cpu, on_gpu)]
        assert np.array_equal(spoken[0].codes, spoken[1].codes)
        assert float(np.abs(spoken[0].samples - spoken[1].samples).max()) <= 1e-4
