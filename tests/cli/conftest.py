"""A stand-in for a loaded model, and a tiny real checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import qwen3tts
from qwen3tts.runtime.generation import ProgressEvent
from qwen3tts.runtime.speech import Speech, Timings

VOICE_FILE = {"speaker_embedding": [0.5] * 8, "x_vector_only_mode": True, "icl_mode": False}


class FakeTTS:
    """Records how it was loaded and asked; speaks noise."""

    def __init__(self) -> None:
        self.loaded: list[tuple[str, dict[str, Any]]] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.frames, self.finish_reason, self.error = 5, "eos", None
        self.codes = np.random.default_rng(5).integers(0, 2048, (self.frames, 16)).astype(np.int16)
        self.backend_name, self.device, self.dtype, self.load_seconds = "torch", "cpu", "torch.float32", 0.25
        self.config = SimpleNamespace()

    def load(self, model: str, **arguments: Any) -> "FakeTTS":
        self.loaded.append((model, arguments))
        return self

    def __enter__(self) -> "FakeTTS":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def generate(self, text: str, **arguments: Any) -> Speech:
        self.asked.append((text, arguments))
        if self.error is not None:
            raise self.error
        if arguments["progress"] is not None:
            for frame in range(self.frames):
                arguments["progress"](ProgressEvent("generate", frame + 1, 9))
        decode = arguments["decode"]
        samples = np.full(self.frames * 1920 if decode else 0, 0.25, np.float32)
        timings = Timings(0.01, 0.02, 1.5, 0.5 if decode else 0.0)
        return Speech(samples, 24000, self.codes[: self.frames], self.finish_reason, 7, timings)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTTS:
    tts = FakeTTS()
    monkeypatch.setattr(qwen3tts, "load", tts.load)
    return tts


@pytest.fixture
def voice_file(tmp_path: Path) -> Path:
    path = tmp_path / "voice.json"
    path.write_text(json.dumps(VOICE_FILE))
    return path


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs one of the two programs in-process in an empty folder."""
    from qwen3tts.cli import hip_generate, main

    monkeypatch.chdir(tmp_path)

    def run(program: str, *arguments: object, **keywords: Any) -> Any:
        app = {"qwen3tts": main.app, "hip": hip_generate.app}[program]
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], **keywords)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from qwen3tts.synthetic import make_checkpoint

    return Path(make_checkpoint(tmp_path_factory.mktemp("cli") / "tiny", preset="tiny", model_type="custom_voice"))
