"""Native passes switched on and taken back many times, on a card 500: nothing grows, and the speech stays the same to
the bit."""

import gc

import numpy as np
import psutil
import pytest
import torch

import qwen3tts
from qwen3tts import GenerateOptions
from qwen3tts.backends.native import open_native

PASSES = ("custom-kernels", "codec-kernels")


def rounds(tts, count, growth):
    """Applies and restores; `growth()` is read after a fifth of the rounds and at the end."""

    def speech():
        return tts.generate("Good morning.", "ryan", "english", options=GenerateOptions(max_frames=3, seed=5))

    plain = speech()
    tts.apply_optimization_plan(PASSES)
    on = speech()
    tts.restore_optimization_plan()
    for i in range(count):
        tts.apply_optimization_plan(PASSES)
        if i % (count // 5) == 0:
            again = speech()
            assert np.array_equal(on.codes, again.codes)
            assert np.array_equal(on.samples, again.samples)
        tts.restore_optimization_plan()
        if i == count // 5:
            gc.collect()
            settled = growth()
    gc.collect()
    after = speech()
    assert np.array_equal(plain.codes, after.codes)
    assert np.array_equal(plain.samples, after.samples)
    return [end - begin for begin, end in zip(settled, growth(), strict=True)]


def test_in_the_emulation(tiny_checkpoint, emulated):
    process = psutil.Process()
    with qwen3tts.load(tiny_checkpoint(), backend="cpu") as tts:
        tts.engine.runtime.native = emulated(32)
        grown, objects = rounds(tts, 50, lambda: (process.memory_info().rss, len(gc.get_objects())))
    print(f"grew by {grown / 2**20:.1f} MiB, {objects} objects")
    assert grown < 16 * 2**20
    assert objects < 40, "a leaked object a round would be 40"


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "hip"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_a_card(tiny_checkpoint, backend, dtype):
    open_native(backend)
    with qwen3tts.load(tiny_checkpoint(), backend=backend, dtype=dtype, profile="reference") as tts:
        grown, objects = rounds(tts, 500, lambda: (torch.cuda.memory_allocated(), len(gc.get_objects())))
    assert grown <= 0
    assert objects < 400, "a leaked object a round would be 400"
