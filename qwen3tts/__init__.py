"""qwen3tts: speech from Alibaba's Qwen3-TTS models, equal to the official package.

import qwen3tts
with qwen3tts.load("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice") as tts:
    tts.generate("Hello, world.", voice="ryan", language="english").save("hello.wav")
"""

from qwen3tts._version import __version__
from qwen3tts.api import TTS, generate, load
from qwen3tts.errors import (
    AudioError,
    BackendError,
    CapacityError,
    CheckpointError,
    ConfigError,
    DownloadError,
    NumericsError,
    OptionError,
    Qwen3TTSError,
    TextError,
    TokenizerError,
    VoiceError,
    WeightsError,
)
from qwen3tts.official import Qwen3TTSModel
from qwen3tts.options import GenerateOptions, RuntimeOptions
from qwen3tts.runtime.generation import ProgressEvent
from qwen3tts.runtime.speech import Speech, Timings
from qwen3tts.voice.voice import Voice

__all__ = [
    "TTS",
    "AudioError",
    "BackendError",
    "CapacityError",
    "CheckpointError",
    "ConfigError",
    "DownloadError",
    "GenerateOptions",
    "NumericsError",
    "OptionError",
    "ProgressEvent",
    "Qwen3TTSError",
    "Qwen3TTSModel",
    "RuntimeOptions",
    "Speech",
    "TextError",
    "Timings",
    "TokenizerError",
    "Voice",
    "VoiceError",
    "WeightsError",
    "__version__",
    "generate",
    "load",
]
