"""Ranges for profilers: balanced whatever happens inside, and nothing at all where they are off."""

import pytest
import torch

import qwen3tts
from qwen3tts.markers import marked, marker
from qwen3tts.optimization.profiles import PlannedPass, Profile


@pytest.fixture
def ranges(monkeypatch):
    """What is pushed and, as None, popped."""
    seen = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", seen.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: seen.append(None))
    return seen


def test_ranges_are_closed_also_by_an_error(ranges):
    with marker("a"), marker("b", on=False), marker("c"):
        pass
    assert ranges == ["qwen3tts.a", "qwen3tts.c", None, None]
    ranges.clear()

    def fail(x, *, y):
        raise KeyError(x + y)

    with pytest.raises(KeyError, match="3"):
        marked("d", fail)(1, y=2)
    assert marked("d", fail).__name__ == "fail"
    assert ranges == ["qwen3tts.d", None]


def test_a_load_without_a_gpu_has_none(ranges, tiny_checkpoint):
    asked = Profile("marked", "torch", "", (PlannedPass("custom-kernels", {"markers": True}),))
    with qwen3tts.load(tiny_checkpoint(), backend="cpu", profile=asked) as tts:
        tts.generate("Hello.", "ryan", options=qwen3tts.GenerateOptions(max_frames=2))
    assert ranges == []
