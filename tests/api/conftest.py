"""Loaded tiny models, one per process: the tests change nothing in them."""

import pytest

import qwen3tts


@pytest.fixture(scope="session")
def tts(tiny_checkpoint):
    """Custom voice whose speech goes on until a limit."""
    with qwen3tts.load(tiny_checkpoint(), backend="cpu") as loaded:
        yield loaded


@pytest.fixture(scope="session")
def ending_tts(tiny_checkpoint):
    """Custom voice whose speech ends after 2 to 20 frames."""
    with qwen3tts.load(tiny_checkpoint(eos_gain=2.0), backend="cpu") as loaded:
        yield loaded


@pytest.fixture(scope="session")
def instructable_tts(tiny_checkpoint):
    """Custom voice of the kind that follows an instruct."""
    with qwen3tts.load(tiny_checkpoint(preset="tiny-mtp", seed=3), backend="cpu") as loaded:
        yield loaded


@pytest.fixture(scope="session")
def design_tts(tiny_checkpoint):
    """Voice design."""
    with qwen3tts.load(tiny_checkpoint("voice_design", seed=1), backend="cpu") as loaded:
        yield loaded


@pytest.fixture(scope="session")
def base_tts(tiny_checkpoint):
    """Base: voices are x-vectors."""
    with qwen3tts.load(tiny_checkpoint("base", seed=2), backend="cpu") as loaded:
        yield loaded
