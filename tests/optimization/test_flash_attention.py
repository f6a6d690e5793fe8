"""The pass `flash-attention-4` without its card: what it refuses, and what it does to the talker with a stand-in."""

import sys
import types

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from qwen3tts import GenerateOptions
from qwen3tts.errors import OptimizationCompatibilityError
from qwen3tts.optimization import Capabilities, PassContext
from qwen3tts.optimization.flash_attention import FlashAttention4, open_package


def test_refused_elsewhere(tts):
    for plan in ("flash-attention-4", ("flash-attention-4", {"policy": "required"})):
        with pytest.raises(OptimizationCompatibilityError, match="the device 'cpu'.*the dtype 'float32'"):
            tts.apply_optimization_plan(plan)
    result = tts.apply_optimization_plan(("flash-attention-4", {"policy": "auto"}))
    assert not result.applied[0].applicable
    assert "forward" not in vars(tts.engine.runtime.talker)
    status = tts.optimization_manifest("inference")["passes"][0]["runtime_status"]
    assert status["outcome"] == "not-applicable"
    assert "the device 'cpu'" in status["reason"]
    tts.restore_optimization_plan()


@pytest.fixture
def package(monkeypatch):
    """A stand-in for the package; counts its calls."""
    module = types.ModuleType("flash_attn.cute")
    module.calls = []

    def flash_attn_func(q, k, v, causal=False):
        assert causal
        module.calls.append((q.shape[1], k.shape[1]))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        steps, length = q.shape[2], k.shape[2]
        mask = torch.ones(steps, length, dtype=torch.bool).tril(length - steps)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        return out.transpose(1, 2), None

    module.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", module)
    return module


class Anywhere(FlashAttention4):
    """Without the question which card this is."""

    capabilities = Capabilities()

    def validate(self, model, context):
        open_package()


def test_the_talker_attends_through_the_package(tts, passes, package, seed):
    before = passes.observe(tts)
    options = GenerateOptions(max_frames=6, seed=seed)
    texts = ["Hello, world.", "A second text."]
    plain = tts.generate(texts, tts.voices[0], options=options)
    result = tts.apply_optimization_plan(Anywhere())
    flash = tts.generate(texts, tts.voices[0], options=options)
    evidence = result.applied[0].item.check(result.model, result.applied[0].result.state, result.context)
    entry = tts.optimization_manifest("inference")["passes"][0]
    tts.restore_optimization_plan()
    assert all(np.array_equal(a.codes, b.codes) for a, b in zip(plain, flash, strict=True))
    assert any(steps > 1 for steps, _ in package.calls)
    assert any(steps == 1 and length > 1 for steps, length in package.calls)
    assert evidence.passed
    assert "flash-attn-4" in entry["metadata"]["package"]
    assert entry["runtime_status"]["replaced"] == ("talker",)
    assert vars(passes.observe(tts)) == vars(before)


def test_a_wrong_package_fails_its_check(tts, package):
    right = package.flash_attn_func
    result = tts.apply_optimization_plan(Anywhere())
    package.flash_attn_func = lambda q, k, v, causal: (right(q, k, v, causal)[0] + 0.1, None)
    state = open_package()
    evidence = result.applied[0].item.check(result.model, state, PassContext())
    tts.restore_optimization_plan()
    assert not evidence.passed


def test_a_package_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn.cute", None)
    with pytest.raises(OptimizationCompatibilityError, match="pip install flash-attn-4"):
        open_package()


@pytest.mark.parametrize(
    ("capability", "head_dim", "message"),
    [((8, 9), None, "needs compute capability 9.0.*has 8.9"), ((9, 0), 136, "up to 128; this model has 136"),
     ((9, 0), 60, "multiple of 8"), ((10, 0), None, None)],
)  # fmt: skip
def test_cards_and_heads(tts, package, monkeypatch, capability, head_dim, message):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    model = tts.engine.runtime
    if head_dim is not None:
        config = types.SimpleNamespace(
            config=types.SimpleNamespace(transformer=types.SimpleNamespace(head_dim=head_dim))
        )
        model = types.SimpleNamespace(talker=config, device=model.device)
    if message is None:
        FlashAttention4().validate(model, PassContext(device="cuda", dtype="bfloat16"))
        return
    with pytest.raises(OptimizationCompatibilityError, match=message):
        FlashAttention4().validate(model, PassContext(device="cuda", dtype="bfloat16"))
