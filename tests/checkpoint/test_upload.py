"""The way of weights to a GPU, run here with the CPU as its device: values, dtypes, what is told of bad ones."""

import random

import pytest
import torch

from qwen3tts.checkpoint import upload as upload_module
from qwen3tts.checkpoint.upload import upload

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(upload_module, "PIECE", 96)


def test_values_and_dtypes(seed):
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    shapes = [(0, 3), (), (1,), (48,), (49,), *((rng.randint(1, 9), rng.randint(1, 90)) for _ in range(30))]
    sources = [torch.randn(shape, generator=generator).to(rng.choice(DTYPES)) for shape in shapes]
    targets = [torch.full(shape, torch.nan, dtype=rng.choice(DTYPES)) for shape in shapes]
    read: list[int] = []
    assert upload(targets, lambda i: sources[i], CPU, done=read.append) == []
    assert sorted(read) == list(range(len(shapes)))
    for source, target in zip(sources, targets, strict=True):
        assert torch.equal(target, source.to(target.dtype))
    assert upload([], lambda i: sources[i], CPU) == []


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_which_ones_are_not_finite(seed, value):
    rng = random.Random(seed)
    sources = [torch.zeros(rng.randint(1, 400)) for _ in range(20)]
    bad = sorted(rng.sample(range(20), 4))
    for i in bad:
        sources[i][rng.randrange(len(sources[i]))] = value
    targets = [torch.zeros(len(source), dtype=torch.float16) for source in sources]
    assert upload(targets, lambda i: sources[i], CPU) == bad
    wide = [torch.zeros(len(source)) for source in sources]
    assert upload(wide, lambda i: sources[i], CPU) == ([] if value == 1e30 else bad)


def test_an_error_while_reading_is_raised():
    def read(index):
        if index == 3:
            raise OSError("planted")
        return torch.zeros(5)

    with pytest.raises(OSError, match="planted"):
        upload([torch.zeros(5) for _ in range(9)], read, CPU)
