"""Codec encoder and speaker encoder equal the official package, in fp32 on the CPU, on every listed recording: the
encoder cases and the references of the clones."""

import functools
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import build_checkpoint
from compare import max_relative
from fixtures import read_manifest
from signals import SAMPLE_RATE, signal

from qwen3tts.audio.reading import read_audio
from qwen3tts.backends.torch.encoders import TorchEncoders
from qwen3tts.checkpoint import open_checkpoint
from qwen3tts.model.codec_encoder import Codebook

FIXTURES = Path(__file__).resolve().parent / "fixtures"
MARGIN_LIMIT = 1e-3
"""a code may differ where the second-nearest entry is not farther away than that"""
EMBEDDING_LIMIT = 1e-5
"""max abs error / max abs"""


def recordings(own_kind, modes):
    """(checkpoint, signal, name of the official array) of all listed recordings."""
    array = {"codec_encode": ("codes", "ref_codes"), "speaker_embedding": ("embedding", "speaker_embedding")}[own_kind]
    for name, checkpoint in read_manifest(FIXTURES)["checkpoints"].items():
        for case in (entry["case"] for entry in checkpoint["cases"]):
            label = f"{name}-{case['name']}"
            if case["kind"] == own_kind:
                yield pytest.param(name, case["signal"], f"{case['name']}/{array[0]}", id=label)
            for r, row in enumerate(case["rows"] if case["kind"] == "voice_clone" else ()):
                if row["reference"]["mode"] in modes:
                    official = f"{case['name']}/{array[1]}.{r}"
                    yield pytest.param(name, row["reference"]["signal"], official, id=f"{label}-{r}")


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """Checkpoint name -> TorchEncoders, built once."""

    @functools.cache
    def load(name):
        folder = tmp_path_factory.mktemp("encoders")
        checkpoint = open_checkpoint(build_checkpoint(name, folder, os.environ.get("QWEN3TTS_DASHSCOPE_WHEEL")))
        return TorchEncoders(checkpoint, torch.device("cpu"), torch.float32)

    return load


@pytest.fixture
def margins(monkeypatch):
    """Filled, book by book, with how much farther the second-nearest entry was: float [frames] each."""
    seen = []
    nearest = Codebook.nearest

    def measured(book, x):
        near = torch.cdist(x[None], book.entries[None])[0].topk(2, largest=False)[0]
        seen.append((near[:, 1] - near[:, 0]).numpy())
        return nearest(book, x)

    monkeypatch.setattr(Codebook, "nearest", measured)
    return seen


def unexcused(ours, theirs, margin):
    """(frame, book) of differences that rounding does not explain. After one that it explains, the later acoustic books
    of that frame quantize another residual and are not compared."""
    found = []
    for frame, book in np.argwhere(ours != theirs):
        excused = margin[frame] <= MARGIN_LIMIT
        if not excused[book] and not (excused & (ours != theirs)[frame])[1:book].any():
            found.append((int(frame), int(book)))
    return found


@pytest.mark.parametrize(("name", "recording", "official"), list(recordings("codec_encode", ("icl",))))
def test_codes(name, recording, official, encoders, archive, margins):
    theirs = archive(name)[official]
    ours = encoders(name).encode(read_audio((signal(**recording), SAMPLE_RATE)))
    assert ours.shape == theirs.shape == (-(-recording["samples"] // 1920), 16)
    print(f"{(ours != theirs).sum()} of {ours.size} codes differ")
    assert unexcused(ours, theirs, np.stack(margins, -1)) == []


@pytest.mark.parametrize(("name", "recording", "official"), list(recordings("speaker_embedding", ("icl", "x_vector"))))
def test_embedding(name, recording, official, encoders, archive):
    theirs = archive(name)[official]
    ours = encoders(name).embed(read_audio((signal(**recording), SAMPLE_RATE)))
    assert ours.shape == theirs.shape
    error = max_relative(ours, theirs)
    print(f"error {error:.1e}")
    assert error <= EMBEDDING_LIMIT


def test_rule_of_excused_differences():
    margin = np.ones((3, 16))
    margin[1, 3] = margin[2, 0] = 1e-4
    theirs = np.zeros((3, 16), int)
    ours = theirs.copy()
    ours[0, 5] = ours[1, 3] = ours[1, 9] = ours[2, 0] = ours[2, 7] = 1
    assert unexcused(ours, theirs, margin) == [(0, 5), (2, 7)]  # book 0 does not feed the acoustic ones
