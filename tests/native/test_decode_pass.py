"""The decode core through the public API, as the option `decode` of custom-kernels: the same speech as without it."""

import numpy as np
import pytest
import torch

import qwen3tts
from qwen3tts import GenerateOptions, RuntimeOptions, StreamOptions, TextStreamOptions
from qwen3tts.backends.native.custom_kernels import CustomKernels
from qwen3tts.backends.native.decode import part
from qwen3tts.backends.native.decode.capture import PROMPT_COLUMNS
from qwen3tts.backends.native.decode.state import PAGE
from qwen3tts.backends.torch.frame_decoder import TorchFrameDecoder
from qwen3tts.errors import CapacityError, OptimizationCompatibilityError, OptionError

GROUPS = 3
SIZES = {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "num_code_groups": GROUPS}
NARROW = {
    "config": {
        "talker_config": SIZES
        | {"hidden_size": 32, "code_predictor_config": SIZES | {"hidden_size": 16, "num_hidden_layers": 1}}
    },
    "speech_tokenizer": {"encoder_valid_num_quantizers": GROUPS, "decoder_config": {"num_quantizers": GROUPS}},
}
"""few and narrow products: the emulation takes its time for each"""
TEXT = "Good morning."
CORE = CustomKernels(norms=False, sampler=False, decode=True, frames_per_replay=2)


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    """One per module: every test takes its plan back."""
    opened = {}

    def load(dtype="float32", **options):
        key = dtype, tuple(options.items())
        if key not in opened:
            folder = tiny_checkpoint(preset="tiny-mtp", eos_gain=1.0, override=NARROW)
            runtime = RuntimeOptions(**({"max_streams": 3, "max_positions": 128} | options))
            opened[key] = qwen3tts.load(folder, backend="cpu", dtype=dtype, runtime=runtime)
        return opened[key]

    yield load
    for tts in opened.values():
        tts.close()


@pytest.fixture
def native(emulated):
    return emulated(64)


@pytest.fixture
def with_kernels(model, native):
    """with_kernels(...) -> a loaded model that has the emulated kernels at hand."""
    given = []

    def load(*arguments, **options):
        tts = model(*arguments, **options)
        tts.engine.runtime.native = native
        given.append(tts)
        return tts

    yield load
    for tts in given:
        if tts.optimization_result() is not None:
            tts.restore_optimization_plan()
        vars(tts.engine.runtime).pop("native", None)


def spoken(tts):
    """Codes of every way to speak, more texts than streams among them, and how each ended."""
    options, voice = GenerateOptions(max_frames=5, seed=3), ("ryan", "english")
    several = tts.generate(["Hello, world.", "One.", "Two, three.", TEXT], *voice, options=options)
    streamed = options.replace(text_mode="streamed", text_lookahead_tokens=2)
    several.append(tts.generate(TEXT, *voice, options=streamed))
    several.append(tts.generate(TEXT, *voice, options=options.replace(rng="torch")))
    made = [(speech.codes.tolist(), speech.finish_reason) for speech in several]
    with tts.stream(TEXT, *voice, options=options, stream_options=StreamOptions(chunk_frames=(1, 3))) as stream:
        made.append((np.concatenate([chunk.codes for chunk in stream]).tolist(), stream.finish_reason))
    with tts.open_text_stream(
        *voice, options=options, stream_options=TextStreamOptions(chunk_frames=(2,), min_start_tokens=2)
    ) as stream:
        chunks = []
        for piece in ("Good mor", "ning to all", " of you"):
            stream.push_text(piece)
            while hasattr(chunk := stream.poll(), "codes"):
                chunks.append(chunk.codes)
        stream.finish()
        chunks += [chunk.codes for chunk in stream]
        made.append((np.concatenate(chunks).tolist(), stream.finish_reason))
    return made


def test_it_speaks_the_same_and_leaves_nothing_behind(with_kernels):
    tts = with_kernels()
    runtime = tts.engine.runtime
    plain, weights = runtime.frames, {k: (v.dtype, v.clone()) for k, v in runtime.talker.state_dict().items()}
    before = spoken(tts)
    tts.apply_optimization_plan(CORE)
    assert runtime.frames is not plain
    assert tts.turns.decoder is runtime.frames
    assert spoken(tts) == before
    core = runtime.frames.core
    assert (core.pages.used, core.free_slots()) == (0, 3)
    (entry,) = tts.optimization_manifest("inference")["passes"]
    assert (entry["configuration"]["decode"], entry["configuration"]["frames_per_replay"]) == (True, 2)
    status = entry["runtime_status"]["decode"]
    assert [graph[:2] for graph in status["graphs"]] == [(3, 1), (3, 2), (2, 1), (2, 2), (1, 1), (1, 2)]
    assert [graph[0] for graph in status["prompt_graphs"]] == sorted(PROMPT_COLUMNS, reverse=True)
    tts.restore_optimization_plan()
    assert runtime.frames is plain is tts.turns.decoder
    assert core.nbytes == 0
    after = runtime.talker.state_dict()
    assert list(after) == list(weights)
    for name, (dtype, value) in weights.items():
        assert after[name].dtype == dtype
        assert torch.equal(after[name], value)
    assert spoken(tts) == before


def test_it_works_beside_the_other_parts(with_kernels):
    tts = with_kernels()
    plain = tts.engine.runtime.frames
    picker = plain.picker
    options = GenerateOptions(max_frames=3, seed=8)
    before = tts.generate(TEXT, "ryan", "english", options=options)
    tts.apply_optimization_plan(CustomKernels(decode=True, frames_per_replay=1))
    during = tts.generate(TEXT, "ryan", "english", options=options)
    assert np.array_equal(before.codes, during.codes)
    np.testing.assert_allclose(before.samples, during.samples, atol=1e-5)
    tts.restore_optimization_plan()
    assert tts.engine.runtime.frames is plain
    assert plain.picker is picker


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_check_passes_and_sees_what_is_wrong(with_kernels, monkeypatch, dtype):
    tts = with_kernels(dtype)
    runtime = tts.engine.runtime
    result = tts.apply_optimization_plan(CORE)
    (applied,) = result.applied
    evidence = CORE.check(runtime, applied.result.state, result.context)
    assert evidence.passed, evidence
    assert 0 < evidence.error <= evidence.bound == 1.0
    assert "3 frames" in evidence.compared
    core = runtime.frames.core
    assert core.pages.used == 0
    with monkeypatch.context() as patch:
        patch.setattr(core, "hidden", lambda slots, right=core.hidden: right(slots) * 1.1)
        assert not CORE.check(runtime, applied.result.state, result.context).passed
    fetched = core.state.fetched_codes
    with monkeypatch.context() as patch:
        patch.setattr(core.state, "fetched_codes", lambda mirror, rows, n: fetched(mirror, rows, n) ^ (n > 1))
        assert not CORE.check(runtime, applied.result.state, result.context).passed


def test_closing_the_model_frees_the_core(native, tiny_checkpoint):
    folder = tiny_checkpoint(preset="tiny-mtp", eos_gain=1.0, override=NARROW)
    with qwen3tts.load(folder, backend="cpu", runtime=RuntimeOptions(max_streams=1, max_positions=64)) as tts:
        tts.engine.runtime.native = native
        tts.apply_optimization_plan(CORE)
        core = tts.engine.runtime.frames.core
        assert core.nbytes > core.state.pool.nbytes > 0
        stream = tts.stream("One.", "ryan", "english", options=GenerateOptions(max_frames=4))
        next(stream)
    assert core.nbytes == 0
    assert core.weights.kept == []
    stream.close()
    assert core.free_slots() == 1


def test_a_failed_start_leaves_the_model_as_it_was(with_kernels, monkeypatch):
    tts = with_kernels("bfloat16")
    runtime = tts.engine.runtime
    plain, dtypes = runtime.frames, {k: v.dtype for k, v in runtime.talker.state_dict().items()}

    def fail(*arguments, **options):
        assert runtime.talker.codec_head.weight.dtype == torch.bfloat16
        raise RuntimeError("no memory for this graph")

    monkeypatch.setattr(part, "NativeFrameDecoder", fail)
    with pytest.raises(qwen3tts.errors.OptimizationApplicationError, match="no memory for this graph"):
        tts.apply_optimization_plan(CORE)
    assert runtime.frames is plain
    assert {k: v.dtype for k, v in runtime.talker.state_dict().items()} == dtypes
    assert "forward" not in vars(runtime.talker.codec_head)


def test_what_does_not_fit_is_refused_before_anything_changes(with_kernels, monkeypatch):
    for frames in (0, 33, 1.5, True):
        with pytest.raises(OptionError, match="frames_per_replay is .* from 1 to 32"):
            CustomKernels(frames_per_replay=frames)
    with pytest.raises(OptionError, match="decode is 1; expected True, False or 'auto'"):
        CustomKernels(decode=1)
    tts = with_kernels(max_streams=65, max_positions=64)
    assert isinstance(tts.engine.runtime.frames, TorchFrameDecoder)
    with pytest.raises(OptimizationCompatibilityError, match="up to 64 streams; .* max_streams=65"):
        tts.apply_optimization_plan(CORE)
    tts = with_kernels()
    monkeypatch.setattr(part, "HEAD_DIMS", (64, 128))
    with pytest.raises(OptimizationCompatibilityError, match="head sizes 64, 128 and 1, 2 or 4 heads per key"):
        tts.apply_optimization_plan(CORE)
    assert tts.optimization_result() is None


def test_a_pool_that_is_too_small_says_so(with_kernels):
    page = PAGE * 2 * 2 * 16 * 4  # keys and values of 2 layers with a head of 16 in fp32
    with pytest.raises(OptimizationCompatibilityError, match=f"pages of {page:,} bytes; kv_bytes={page - 1:,} is less"):
        with_kernels(kv_bytes=page - 1).apply_optimization_plan(CORE)
    tts = with_kernels(kv_bytes=page)
    (applied,) = tts.apply_optimization_plan(CORE).applied
    assert applied.result.state.decode.error(tts.engine.runtime, torch.Generator()) <= 1
    speech = tts.generate("One.", "ryan", "english", options=GenerateOptions(max_frames=2))
    assert len(speech.codes) == 2
    with pytest.raises(CapacityError, match="[23] pages of keys and values; there are 1 in all"):
        tts.generate(TEXT, "ryan", "english", options=GenerateOptions(max_frames=60))
