"""qwen3tts: speech from Alibaba's Qwen3-TTS models, equal to the official package.

    import qwen3tts
    with qwen3tts.load("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice") as tts:
        tts.generate("Hello, world.", voice="ryan", language="english").save("hello.wav")
"""

import importlib
from typing import TYPE_CHECKING, Any

from qwen3tts._version import __version__
from qwen3tts.errors import (
    AudioError,
    BackendError,
    CapacityError,
    CheckpointError,
    ConfigError,
    DownloadError,
    NumericsError,
    OptimizationApplicationError,
    OptimizationCompatibilityError,
    OptimizationError,
    OptimizationPlanError,
    OptimizationStateError,
    OptionError,
    Qwen3TTSError,
    TextError,
    TokenizerError,
    VoiceError,
    WeightsError,
)

if TYPE_CHECKING:
    from qwen3tts.api import TTS, generate, load
    from qwen3tts.official import Qwen3TTSModel, Qwen3TTSTokenizer, VoiceClonePromptItem
    from qwen3tts.options import GenerateOptions, RuntimeOptions, StreamOptions, TextStreamOptions
    from qwen3tts.runtime.generation import ProgressEvent
    from qwen3tts.runtime.speech import Speech, Timings
    from qwen3tts.runtime.streams import AudioChunk, SpeechStream
    from qwen3tts.runtime.text_stream import Finished, NeedMoreText, TextStream
    from qwen3tts.voice.voice import Voice

__all__ = [
    "TTS",
    "AudioChunk",
    "AudioError",
    "BackendError",
    "CapacityError",
    "CheckpointError",
    "ConfigError",
    "DownloadError",
    "Finished",
    "GenerateOptions",
    "NeedMoreText",
    "NumericsError",
    "OptimizationApplicationError",
    "OptimizationCompatibilityError",
    "OptimizationError",
    "OptimizationPlanError",
    "OptimizationStateError",
    "OptionError",
    "ProgressEvent",
    "Qwen3TTSError",
    "Qwen3TTSModel",
    "Qwen3TTSTokenizer",
    "RuntimeOptions",
    "Speech",
    "SpeechStream",
    "StreamOptions",
    "TextError",
    "TextStream",
    "TextStreamOptions",
    "Timings",
    "TokenizerError",
    "Voice",
    "VoiceClonePromptItem",
    "VoiceError",
    "WeightsError",
    "__version__",
    "generate",
    "load",
]

# Imported on first use: they need torch, whose import takes seconds, and `qwen3tts --help` should not.
_LAZY = {
    "TTS": "qwen3tts.api",
    "generate": "qwen3tts.api",
    "load": "qwen3tts.api",
    "Qwen3TTSModel": "qwen3tts.official",
    "Qwen3TTSTokenizer": "qwen3tts.official",
    "VoiceClonePromptItem": "qwen3tts.official",
    "GenerateOptions": "qwen3tts.options",
    "RuntimeOptions": "qwen3tts.options",
    "StreamOptions": "qwen3tts.options",
    "TextStreamOptions": "qwen3tts.options",
    "ProgressEvent": "qwen3tts.runtime.generation",
    "Speech": "qwen3tts.runtime.speech",
    "Timings": "qwen3tts.runtime.speech",
    "AudioChunk": "qwen3tts.runtime.streams",
    "SpeechStream": "qwen3tts.runtime.streams",
    "Finished": "qwen3tts.runtime.text_stream",
    "NeedMoreText": "qwen3tts.runtime.text_stream",
    "TextStream": "qwen3tts.runtime.text_stream",
    "Voice": "qwen3tts.voice.voice",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
