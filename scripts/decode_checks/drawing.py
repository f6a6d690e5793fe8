"""Talkers and rows with random values that every machine draws alike, whatever its torch and its devices: no weights
are carried, and a model of the released size is there in seconds.

A value is a sum of four 16-bit pieces of a hash of (seed, name, index), which is nearly normal, times a scale: whole
numbers below 2^24 and one rounding each for the product, the shift of the mean, and bf16. So every value exists in
bf16, and a checksum of the bits says whether two machines have the same ones."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from qwen3tts.backends.torch.runtime import stored_dtype
from qwen3tts.checkpoint.config import parse_config
from qwen3tts.checkpoint.json_object import JsonObject
from qwen3tts.model.config import TalkerConfig
from qwen3tts.model.sampling import SamplingParams
from qwen3tts.model.talker import Talker
from qwen3tts.runtime.protocols import RowRequest
from qwen3tts.synthetic.configs import build_configs
from qwen3tts.synthetic.weights import moments

TEXT_ROWS = 1000
"""of the text table, which decoding does not read"""
PIECES_STD = (4 * (65536**2 - 1) / 12) ** 0.5
"""of the sum of four uniform 16-bit numbers"""
MAX_POSITIONS = 8192


def talker_config(preset: str) -> TalkerConfig:
    """The sizes of a preset of qwen3tts.synthetic."""
    ids = {"vocab": TEXT_ROWS, "assistant": 1, "im_end": 2, "im_start": 3, "tts_bos": 4, "tts_eos": 5, "tts_pad": 6}
    config, codec = build_configs(preset, "custom_voice", ids, "4.57.2")
    return parse_config(JsonObject("config.json", "", config), JsonObject("codec", "", codec)).talker


def _signed(value: int) -> int:
    """A 64-bit number as torch.int64 has it."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _hash(x: Tensor) -> Tensor:
    """splitmix64 of int64 numbers, in place; products wrap around on every device."""
    x *= _signed(0x9E3779B97F4A7C15)
    for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= (x >> bits).bitwise_and_(2 ** (64 - bits) - 1)  # without the sign
        x *= _signed(factor)
    x ^= (x >> 31).bitwise_and_(2**33 - 1)
    return x


def _blocks(flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """(part, its indices), of a size that stays in the cache of a CPU or fills a GPU."""
    size = 1 << 15 if flat.device.type == "cpu" else 1 << 24
    for first in range(0, flat.numel(), size):
        part = flat[first : first + size]
        yield part, torch.arange(first, first + part.numel(), dtype=torch.int64, device=flat.device)


def drawn(name: str, shape: tuple[int, ...], std: float, mean: float, seed: int, device: torch.device) -> Tensor:
    """bf16 tensor of nearly normal values, a function of all arguments but the device."""
    out = torch.empty(shape, dtype=torch.bfloat16, device=device)
    start = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little")
    scale, shift = (torch.tensor(value, dtype=torch.float32, device=device) for value in (std / PIECES_STD, mean))
    for part, index in _blocks(out.view(-1)):
        bits = _hash(index.add_(_signed(start)))
        pieces = bits.view(torch.int16).view(-1, 4).sum(1, dtype=torch.int32)
        part.copy_((pieces + 2).to(torch.float32) * scale + shift)
    return out


def checksum(tensor: Tensor) -> int:
    """Of the bits of a bf16 tensor and their places; sums of whole numbers, whose order is free."""
    flat = tensor.detach().reshape(-1).view(torch.int16)
    return sum(int((part * (index % 65521)).sum()) for part, index in _blocks(flat)) % 2**64


@dataclass(frozen=True)
class DrawnTalker:
    """A model, and what its bits sum to."""

    talker: Talker
    padding: Tensor
    """[hidden]: the text row of frames past the end of the text"""
    checksum: int


def draw_talker(
    config: TalkerConfig, dtype: torch.dtype, device: torch.device, *, seed: int = 1, positions: int = MAX_POSITIONS
) -> DrawnTalker:
    """A talker with the scales of the synthetic checkpoints, prepared; the end of speech is never picked."""
    with torch.device("meta"):
        talker = Talker(config)
    talker.to_empty(device=device)
    total = 0
    for name, parameter in sorted(talker.named_parameters()):
        std, mean = moments(f"talker.{name}", tuple(parameter.shape))
        values = drawn(name, tuple(parameter.shape), std, mean, seed, device)
        if name == "codec_head.weight":
            values[config.codec_eos_id] = 0
        total = (total * 31 + checksum(values)) % 2**64
        parameter.data = values.to(stored_dtype(name, torch.bfloat16, dtype))
    with torch.inference_mode():
        talker.eval().prepare(positions)
    padding = drawn("padding", (config.transformer.hidden_size,), 1.0, 0.0, seed, device)
    total = (total * 31 + checksum(padding)) % 2**64
    return DrawnTalker(talker.requires_grad_(False), padding.to(dtype), total)


def draw_row(
    talker: Talker, seed: int, *, prompt: int, text: int, frames: int, sampling: SamplingParams, penalty: float = 1.05
) -> RowRequest:
    """A row whose prompt and text are drawn from `seed`, which also draws its codes."""
    hidden = talker.config.transformer.hidden_size
    x = drawn("row", (prompt + text, hidden), 1.0, 0.0, seed, talker.device).to(talker.dtype)
    return RowRequest(
        prefill=x[:prompt], trailing=x[prompt:], talker=sampling, predictor=sampling, repetition_penalty=penalty,
        seed=seed, part=0, max_frames=frames,
    )  # fmt: skip
