"""Qwen3TTSTokenizer: the codec alone, audio to codes and back."""

import numbers
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qwen3tts.api import parse_dtype
from qwen3tts.audio.reading import MAX_RATE, MIN_RATE
from qwen3tts.backends.registry import choose
from qwen3tts.backends.torch.codec import TorchCodecDecoder
from qwen3tts.checkpoint import TensorReader, check_layout, codec_keys, load_module, locate
from qwen3tts.checkpoint.codec_config import parse_codec_config
from qwen3tts.checkpoint.json_object import read_json
from qwen3tts.checkpoint.opening import CODEC_FOLDER
from qwen3tts.errors import OptionError, VoiceError, shortened
from qwen3tts.model.codec_decoder import CodecDecoder
from qwen3tts.model.codec_encoder import CodecEncoder
from qwen3tts.model.config import CodecConfig
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.official.arguments import loading_arguments, read_official

CONFIG = "config.json"
MODEL_TYPE = "qwen3_tts_tokenizer_12hz"


@dataclass(frozen=True)
class EncoderOutput:
    """What encode() returns: also `output["audio_codes"]` and `output[0]`."""

    audio_codes: list[torch.Tensor]
    """int64 [frames, 16] of each recording"""

    def __getitem__(self, key: str | int) -> list[torch.Tensor]:
        if key not in (0, "audio_codes"):
            raise KeyError(key) if isinstance(key, str) else IndexError(key)
        return self.audio_codes


class Qwen3TTSTokenizer:
    """The official package's Qwen3TTSTokenizer for the 12 Hz codec, in float32. Make it with from_pretrained()."""

    def __init__(self, config: CodecConfig, encoder: CodecEncoder, decoder: CodecDecoder, device: torch.device) -> None:
        self.config, self.device = config, device
        self._encoder, self._decoder = encoder, TorchCodecDecoder(decoder, device)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any
    ) -> "Qwen3TTSTokenizer":
        """Loads a codec's folder or hub id, or the codec of a whole checkpoint; keywords as for the model.

        A dtype is accepted and has no effect: this codec computes in float32. Raises CheckpointError or OptionError."""
        dtype, device, offline, passed = loading_arguments(kwargs)
        _, where = choose("torch", device)
        parse_dtype(dtype, where)
        folder = locate(pretrained_model_name_or_path, offline=offline, **passed)
        if (folder / CODEC_FOLDER).is_dir():
            folder /= CODEC_FOLDER
        config = parse_codec_config(read_json(folder / CONFIG, CONFIG))
        return cls(config, *_load(folder, config, where), where)

    # ------------------------------------------------------------ audio to codes and back

    def encode(self, audios: Any, sr: int | None = None, return_dict: bool = True) -> Any:
        """Codes of a recording or a list of them: paths, URLs or base64 strings, or arrays with their rate `sr`.

        Returns EncoderOutput, or (audio_codes,) without return_dict. Each recording is encoded alone. Raises
        ValueError for arrays without a rate, TypeError for mixed kinds, AudioError for what cannot be read."""
        paths = (str, os.PathLike)
        sources = [audios] if isinstance(audios, (*paths, np.ndarray)) else list(audios)
        named = bool(sources) and isinstance(sources[0], paths)
        kind: tuple[type, ...] = paths if named else (np.ndarray,)
        if not all(isinstance(source, kind) for source in sources):
            raise TypeError("Recordings of mixed or unknown kinds; give paths and base64 strings only, or arrays only.")
        codes = []
        for source in sources:
            samples = read_official(source, self.config.sample_rate, None if named else sr)
            with exact_arithmetic(self.device):
                codes.append(self._encoder(torch.from_numpy(samples).to(self.device)))
        return EncoderOutput(codes) if return_dict else (codes,)

    def load_audio(self, x: str | os.PathLike[str], target_sr: int) -> NDArray[np.float32]:
        """float32 [ceil(n * target_sr / its rate)]: a path, an http(s) URL (with limits) or a base64 string
        as one channel at target_sr Hz.

        Raises TypeError for other kinds, OptionError for target_sr, AudioError for what cannot be read."""
        if not isinstance(x, str | os.PathLike):
            raise TypeError(f"Audio of type {type(x).__name__}; expected a path, URL or base64 string.")
        whole = isinstance(target_sr, numbers.Integral) and not isinstance(target_sr, bool)
        if not whole or not MIN_RATE <= target_sr <= MAX_RATE:
            raise OptionError(
                f"target_sr is {target_sr!r:.60}; expected a whole number of Hz from {MIN_RATE} to {MAX_RATE}."
            )
        return read_official(x, int(target_sr))

    def decode(self, encoded: Any) -> tuple[list[NDArray[np.float32]], int]:
        """(waveforms float32 [frames * 1920], sample rate) of what encode() returned, of {"audio_codes": ...} or of a
        list of such dicts; codes [frames, 16] as tensors or arrays of any integers, or a tensor [rows, frames, 16]
        padded with -1.

        Raises TypeError for other kinds, VoiceError for codes of another shape or range."""
        wavs = []
        for codes in _rows(encoded):
            self._check(codes)
            valid = codes[: int((codes[:, 0] > -1).sum())].clamp(min=0)
            wavs.append(self._decoder.decode_official(valid).numpy())
        return wavs, self.config.sample_rate

    def _check(self, codes: torch.Tensor) -> None:
        books, size = self.config.decoder.num_quantizers, self.config.decoder.codebook_size
        if codes.ndim != 2 or codes.shape[1] != books:
            raise VoiceError(f"Codes have the shape [frames, {books}], not {list(codes.shape)}.")
        if codes.numel() and (int(codes.min()) < -1 or int(codes.max()) >= size):
            raise VoiceError(f"Codes lie between 0 and {size - 1}, these between {codes.min()} and {codes.max()}.")

    # ------------------------------------------------------------ what it is

    def get_model_type(self) -> str:
        """The codec's name."""
        return MODEL_TYPE

    def get_input_sample_rate(self) -> int:
        """Of recordings that are encoded, in Hz; others are resampled."""
        return self.config.sample_rate

    def get_output_sample_rate(self) -> int:
        """Of decoded waveforms, in Hz."""
        return self.config.sample_rate

    def get_encode_downsample_rate(self) -> int:
        """Samples per frame."""
        return self.config.samples_per_frame

    def get_decode_upsample_rate(self) -> int:
        """Samples per frame."""
        return self.config.samples_per_frame


def _load(folder: Path, config: CodecConfig, device: torch.device) -> tuple[CodecEncoder, CodecDecoder]:
    with torch.device("meta"):
        encoder = CodecEncoder(config.encoder, config.decoder.num_quantizers)
        decoder = CodecDecoder(config.decoder, config.samples_per_frame)
    with TensorReader(folder) as weights:
        check_layout(weights, codec_keys(config), what=f"{folder}: the codec")
        parts: Sequence[tuple[str, torch.nn.Module]] = (("encoder.", encoder), ("decoder.", decoder))
        for prefix, part in parts:
            load_module(part, weights, prefix=prefix, device=device, dtype_of=lambda key, stored: torch.float32)
    encoder.eval()
    decoder.eval()
    with exact_arithmetic(device):
        encoder.prepare()
        decoder.prepare()
    return encoder, decoder


def _rows(encoded: Any) -> list[torch.Tensor]:
    """Code tensors on the host, one per recording."""
    if hasattr(encoded, "audio_codes"):
        codes = encoded.audio_codes
    elif isinstance(encoded, dict):
        codes = _codes_of(encoded)
    elif isinstance(encoded, list):
        codes = [_codes_of(entry) for entry in encoded]
    else:
        raise TypeError(f"Codes of type {type(encoded).__name__}; expected what encode() returns, a dict or a list.")
    if isinstance(codes, torch.Tensor | np.ndarray):
        codes = list(codes) if codes.ndim == 3 else [codes]
    if not isinstance(codes, list | tuple):
        raise TypeError(f"audio_codes is of type {type(codes).__name__}; expected tensors or arrays [frames, 16].")
    return [_whole_numbers(row) for row in codes]


def _codes_of(entry: Any) -> Any:
    if not isinstance(entry, dict):
        raise TypeError(f"The list holds a {type(entry).__name__}; expected dicts with the key 'audio_codes'.")
    if "audio_codes" not in entry:
        keys = ", ".join(repr(key)[:40] for key in list(entry)[:8]) or "none"
        raise VoiceError(f"The dict has no key 'audio_codes' with the codes to decode; its keys: {keys}.")
    return entry["audio_codes"]


def _whole_numbers(codes: Any) -> torch.Tensor:
    """int64 on the host, from any type of integers; torch can do little with its unsigned ones."""
    try:
        tensor = codes.detach().cpu() if isinstance(codes, torch.Tensor) else torch.from_numpy(np.array(codes))
    except (TypeError, ValueError) as error:  # ragged lists, arrays of objects
        raise VoiceError(f"Codes cannot be made of a {type(codes).__name__}: {shortened(error)}.") from None
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise VoiceError(f"Codes are whole numbers, not {tensor.dtype}.")
    return tensor.to(torch.int64)
