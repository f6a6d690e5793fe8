"""How the official classes take their arguments: one value or a list, audio of several kinds, loading keywords."""

import base64
import inspect
import io
import os
import re
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qwen3tts.audio.reading import read_audio
from qwen3tts.errors import AudioError, OptionError, nearest, shortened
from qwen3tts.options import MIN_TOP_P

LOADING = ("revision", "cache_dir")
WITHOUT_EFFECT = ("attn_implementation", "low_cpu_mem_usage", "use_safetensors", "trust_remote_code")
MAX_BASE64 = 64 << 20
BASE64_LENGTH = 256
"""a longer string without a slash is no path, as in the official package"""
BASE64 = re.compile(r"[A-Za-z0-9+/\s]+=*\s*")


def loading_arguments(kwargs: dict[str, Any]) -> tuple[torch.dtype | str | None, Any, bool, dict[str, Any]]:
    """(dtype, device, offline, other arguments of locate()) of from_pretrained's keywords. Raises OptionError."""
    kwargs = dict(kwargs)
    dtype = kwargs.pop("torch_dtype", None)
    dtype = kwargs.pop("dtype", dtype)
    if isinstance(dtype, str) and dtype == "auto":
        dtype = torch.bfloat16
    device = kwargs.pop("device_map", None)
    if isinstance(device, dict):
        if set(device) != {""}:
            raise OptionError(f"device_map is {device!r}; this runtime puts a model on one device: {{'': device}}.")
        device = device[""]
    offline = bool(kwargs.pop("local_files_only", False))
    for name in WITHOUT_EFFECT:
        kwargs.pop(name, None)
    passed = {name: kwargs.pop(name) for name in LOADING if name in kwargs}
    for name in kwargs:
        known = ("dtype", "device_map", "local_files_only", *LOADING)
        raise OptionError(f"from_pretrained does not know {name!r}.{nearest(name, known)} It takes {', '.join(known)}.")
    return dtype, None if device == "auto" else "cpu" if device is None else device, offline, passed


def sampling_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Values that the official package takes and the native options refuse, in the native form: 0 and 1 for False and
    True, a top_p of 1 and more (off), of 0 and less (the best token alone)."""
    given = dict(given)
    for name in ("do_sample", "subtalker_dosample"):
        if name in given:
            given[name] = bool(given[name])
    for name in ("top_p", "subtalker_top_p"):
        if name in given and isinstance(given[name], int | float):
            given[name] = min(max(float(given[name]), MIN_TOP_P), 1.0)
    return given


def warn(message: str) -> None:
    """Warns at the line that called this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("qwen3tts"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level - 1 if frame is None else level)


def listed(value: Any) -> list[Any]:
    """A list as it is, anything else in one."""
    return value if isinstance(value, list) else [value]


def column(name: str, value: Any, rows: int) -> list[Any]:
    """One entry per text; a single one serves all."""
    values = listed(value)
    if len(values) == 1:
        values = values * rows
    if len(values) != rows:
        raise ValueError(f"Batch size mismatch: {rows} texts, {len(values)} entries of {name}.")
    return values


def read_official(source: Any, rate: int, sample_rate: int | None = None) -> NDArray[np.float32]:
    """What the official classes take as audio -> float32 [n] at `rate`: a path, an http(s) URL (with limits), base64
    or a data URL, (array, rate), or an array with sample_rate.

    Raises ValueError for an array without a rate, TypeError for other kinds, AudioError for what cannot be read."""
    if isinstance(source, str) and _is_base64(source):
        return read_audio(_decoded(source), rate)
    if isinstance(source, str) and len(source) > BASE64_LENGTH and BASE64.fullmatch(source):
        return read_audio(_existing(source), rate)
    if isinstance(source, str | os.PathLike):
        return read_audio(source, rate, allow_url=True)
    if isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], np.ndarray):
        return read_audio(source, rate)
    if isinstance(source, np.ndarray):
        if sample_rate is None:
            raise ValueError("An array has no sample rate of its own; give it as (array, rate) or as sr=.")
        return read_audio(source, rate, sample_rate=sample_rate)
    raise TypeError(f"Audio of type {type(source).__name__}; expected a path, URL, base64 string or (array, rate).")


def _is_base64(text: str) -> bool:
    return text.startswith("data:audio") or ("/" not in text and "\\" not in text and len(text) > BASE64_LENGTH)


def _existing(path: str) -> str:
    """A path that base64 could be mistaken for, if it is there."""
    if not os.path.exists(path):
        raise AudioError(
            f"There is no file {path[:60]!r}... ({len(path):,} characters). A string with slashes is a path, as in the "
            "official package; before base64 put data:audio/wav;base64,"
        )
    return path


def _decoded(text: str) -> io.BytesIO:
    if len(text) > MAX_BASE64:
        raise AudioError(f"A base64 string of {len(text):,} characters is too long; at most {MAX_BASE64:,}.")
    try:
        return io.BytesIO(base64.b64decode(text.split(",", 1)[1] if text.startswith("data:") else text))
    except (ValueError, IndexError) as error:
        raise AudioError(f"The base64 string cannot be decoded: {shortened(error)}.") from None
