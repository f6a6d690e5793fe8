"""The pass custom-kernels on a tiny model: it speaks the same, leaves no trace, and its check can fail."""

import dataclasses

import numpy as np
import pytest
import torch

from qwen3tts import GenerateOptions
from qwen3tts.backends.native import custom_kernels
from qwen3tts.backends.native.custom_kernels import CustomKernels
from qwen3tts.errors import OptimizationCompatibilityError, OptionError
from qwen3tts.model.layers import DecoderBlock, RMSNorm

OPTIONS = GenerateOptions(max_frames=3, seed=11)


def modules_with_a_forward(tts):
    runtime = tts.engine.runtime
    return [m for part in (runtime.talker, runtime.codec.model) for m in part.modules() if "forward" in vars(m)]


def test_it_speaks_the_same_and_leaves_nothing_behind(tts):
    runtime = tts.engine.runtime
    keys, picker = list(runtime.talker.state_dict()), runtime.frames.picker
    before = tts.generate("Good morning.", "ryan", "english", options=OPTIONS)
    tts.apply_optimization_plan("custom-kernels")
    during = tts.generate("Good morning.", "ryan", "english", options=OPTIONS)
    assert np.array_equal(before.codes, during.codes)
    np.testing.assert_allclose(before.samples, during.samples, atol=1e-5)
    norms = sum(isinstance(m, RMSNorm) for part in (runtime.talker, runtime.codec.model) for m in part.modules())
    blocks = sum(isinstance(m, DecoderBlock) for part in (runtime.talker, runtime.codec.model) for m in part.modules())
    (entry,) = tts.optimization_manifest("inference")["passes"]
    status = entry["runtime_status"]
    assert (status["norms"], status["blocks"], status["sampler"]) == (norms, blocks, True)
    options = {"norms": True, "sampler": True, "decode": False, "frames_per_replay": 4}
    options |= {"kv_positions": None, "persistent_predictor": True, "projections": False, "markers": False}
    assert entry["configuration"] == options
    assert status["decode"] is None
    assert list(runtime.talker.state_dict()) == keys
    tts.restore_optimization_plan()
    assert modules_with_a_forward(tts) == []
    assert runtime.frames.picker is picker
    after = tts.generate("Good morning.", "ryan", "english", options=OPTIONS)
    assert np.array_equal(before.codes, after.codes)
    assert np.array_equal(before.samples, after.samples)


@pytest.mark.parametrize("option", ["norms", "sampler"])
def test_each_option_alone(tts, option):
    runtime, off = tts.engine.runtime, {"norms": False, "sampler": False}
    picker = runtime.frames.picker
    tts.apply_optimization_plan(CustomKernels(**(off | {option: True})))
    assert (runtime.frames.picker is not picker) == (option == "sampler")
    assert bool(modules_with_a_forward(tts)) == (option == "norms")
    tts.restore_optimization_plan()
    (applied,) = tts.apply_optimization_plan(CustomKernels(**off)).applied
    assert applied.result.not_applicable == "all its options are off"


def test_blocks_of_another_pass_are_left_to_it(tts):
    runtime = tts.engine.runtime
    block = runtime.talker.model.layers[0] if hasattr(runtime.talker, "model") else None
    assert isinstance(block, DecoderBlock)
    theirs = vars(block).setdefault("forward", lambda *arguments: DecoderBlock.forward(block, *arguments))
    try:
        tts.apply_optimization_plan("custom-kernels")
        assert vars(block)["forward"] is theirs
        assert not [module for module in block.modules() if module is not block and "forward" in vars(module)]
        tts.restore_optimization_plan()
        assert vars(block)["forward"] is theirs
    finally:
        del block.forward


def test_the_check_passes_and_sees_what_is_wrong(tts, monkeypatch):
    item, runtime = CustomKernels(), tts.engine.runtime
    result = tts.apply_optimization_plan(item)
    (applied,) = result.applied
    evidence = item.check(runtime, applied.result.state, result.context)
    assert evidence.passed
    assert evidence.error <= evidence.bound == 1.0
    assert evidence.seconds < 60
    right = custom_kernels.rms_norm
    monkeypatch.setattr(custom_kernels, "rms_norm", lambda *arguments: right(*arguments) * 1.0001)
    evidence = item.check(runtime, applied.result.state, result.context)
    assert not evidence.passed
    monkeypatch.setattr(custom_kernels, "rms_norm", right)
    picks = custom_kernels.sample
    monkeypatch.setattr(custom_kernels, "sample", lambda *arguments, **options: picks(*arguments, **options) ^ 1)
    assert not item.check(runtime, applied.result.state, result.context).passed


def test_it_is_refused_where_there_are_no_kernels(model):
    with pytest.raises(OptimizationCompatibilityError, match="no native kernels for the device 'cpu'"):
        model.apply_optimization_plan("custom-kernels")
    with pytest.raises(OptionError, match="norms is 1; expected True or False"):
        CustomKernels(norms=1)
    assert model.optimization_result() is None


def test_markers_surround_the_stages(tts, monkeypatch):
    item, seen, depth = CustomKernels(norms=False, sampler=False, markers=True), [], []
    if torch.version.cuda is None and torch.version.hip is None:
        with pytest.raises(OptimizationCompatibilityError, match="built for CUDA or ROCm"):
            tts.apply_optimization_plan(item)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: (seen.append(name), depth.append(name)))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", depth.pop)
    tts.apply_optimization_plan(item)
    tts.generate("Good morning.", "ryan", "english", options=dataclasses.replace(OPTIONS, max_frames=2))
    assert seen == ["qwen3tts.prefill", "qwen3tts.advance", "qwen3tts.advance", "qwen3tts.codec"]
    assert depth == []
    tts.restore_optimization_plan()
    assert "advance" not in vars(tts.engine.runtime.frames)


def test_applied_and_taken_back_many_times(tts):
    runtime, item = tts.engine.runtime, CustomKernels()
    before = {name: value.data_ptr() for name, value in runtime.talker.state_dict().items()}
    for _ in range(20):
        tts.apply_optimization_plan(item)
        tts.restore_optimization_plan()
    assert {name: value.data_ptr() for name, value in runtime.talker.state_dict().items()} == before
    assert modules_with_a_forward(tts) == []
