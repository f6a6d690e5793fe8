"""Seeded random weights with sensible scales, written as safetensors by a pool of threads.

Each tensor depends on (seed, key, shape) alone, so two checkpoints with the same seed share what they have in common.
The scales keep hidden states near 1, logits near a standard deviation of 3 and audio near rms 0.1; layer scales (0.3)
and ConvNeXt gammas (0.5) are large enough that no branch can hide an error. One entry of each codebook is dead.
"""

import json
import math
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qwen3tts.checkpoint.layout import KeyShape

Floats = npt.NDArray[np.float32]

BLOCK = 1 << 20
"""Values drawn, converted and written at a time: bounds the memory, and stays in the CPU's cache."""

_ITEM_SIZE = {"BF16": 2, "F32": 4}


def to_bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    """Bit patterns of bfloat16, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= np.uint32(16)
    return rounded.astype(np.uint16)


class RandomWeights:
    """Weights of one checkpoint."""

    def __init__(self, seed: int, eos_id: int, eos_gain: float) -> None:
        """eos_id, eos_gain: the row of codec_head that is scaled, and by how much."""
        self.seed = seed
        self.eos_id = eos_id
        self.eos_gain = eos_gain

    def blocks(self, key: str, shape: tuple[int, ...]) -> Iterator[Floats]:
        """The tensor's values in order, flat, at most BLOCK at a time where it is large."""
        last = key.rsplit(".", 1)[1]
        if last == "initialized":
            yield np.ones(shape, np.float32)
        elif last == "cluster_usage":
            yield self._usage(key, shape[0])
        elif last in ("embed_sum", "embedding_sum"):
            yield self._codebook_sum(key, shape).reshape(-1)
        elif key == "talker.codec_head.weight":
            head = np.concatenate(list(self._normal(key, shape))).reshape(shape)
            head[self.eos_id] *= np.float32(self.eos_gain)
            yield head.reshape(-1)
        else:
            yield from self._normal(key, shape)

    def _generator(self, key: str) -> np.random.Generator:
        digest = 1469598103934665603  # 64-bit FNV-1a of the key
        for byte in key.encode():
            digest = ((digest ^ byte) * 1099511628211) & (2**64 - 1)
        return np.random.Generator(np.random.SFC64([self.seed, digest & 0xFFFFFFFF, digest >> 32]))

    def _normal(self, key: str, shape: tuple[int, ...]) -> Iterator[Floats]:
        generator, (std, mean) = self._generator(key), moments(key, shape)
        left = math.prod(shape)
        while left:
            block = generator.standard_normal(min(left, BLOCK), dtype=np.float32)
            block *= np.float32(std)
            block += np.float32(mean)
            left -= block.size
            yield block

    def _usage(self, key: str, size: int) -> Floats:
        usage = self._generator(f"usage{_book(key)}").uniform(0.5, 40.0, (size,)).astype(np.float32)
        usage[size // 2] = 0.0
        return usage

    def _codebook_sum(self, key: str, shape: tuple[int, ...]) -> Floats:
        """Entries times usage, which decoding divides out again."""
        book = _book(key)
        std = 1.0 if book == 0 else 0.5 * 0.93**book
        entries = self._generator(f"codebook{book}").standard_normal(shape, dtype=np.float32) * np.float32(std)
        return entries * np.maximum(self._usage(key, shape[0]), np.float32(1e-5))[:, None]


def _book(key: str) -> int:
    """Index of the codebook, the same for encoder and decoder: they share the first 16."""
    if "semantic" in key or "rvq_first" in key:
        return 0
    return 1 + int(key.split("layers.")[1].split(".")[0])


def moments(key: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """(standard deviation, mean) of a normally distributed tensor."""
    named = {"scale": (0.03, 0.3), "gamma": (0.1, 0.5), "alpha": (0.3, 0.0), "beta": (0.3, 0.0), "bias": (0.05, 0.0)}
    last = key.rsplit(".", 1)[1]
    if last in named:
        return named[last]
    if "norm" in key:
        return 0.1, 1.0
    if key.endswith("text_embedding.weight"):
        return 1.0, 0.0
    if key == "talker.model.codec_embedding.weight":
        return 0.8, 0.0
    if "codec_embedding." in key:
        return 0.4, 0.0
    return _gain(key, shape) / math.sqrt(_fan_in(key, shape)), 0.0


def _fan_in(key: str, shape: tuple[int, ...]) -> int:
    if key.startswith("decoder.upsample") and key.endswith(".0.conv.weight"):
        return shape[0]  # transposed convolution, kernel = stride
    if key.startswith("decoder.decoder") and ".block.1.conv" in key:
        return 2 * shape[0]  # transposed convolution, kernel = 2 * stride
    return math.prod(shape[1:])


def _gain(key: str, shape: tuple[int, ...]) -> float:
    if "codec_head" in key or "lm_head" in key:
        return 3.0
    if key == "speaker_encoder.blocks.0.conv.weight":
        return 0.2  # log-mel inputs are about -6
    if key == "speaker_encoder.fc.weight":
        return 0.5
    if key.startswith("speaker_encoder") or (key.startswith("encoder") and ".block." in key):
        return math.sqrt(2)
    if key.startswith("decoder.decoder") and ".block." not in key and shape[0] == 1:
        return 0.06  # last convolution: audio well inside [-1, 1]
    if key.startswith("decoder.decoder") and ".conv1." in key:
        return 0.5
    if "linear_fc2" in key:
        return 1.4
    if key.endswith(("o_proj.weight", "down_proj.weight", "fc2.weight", "conv2.conv.weight")):
        return 0.5
    return 1.0


def write_safetensors(path: Path, keys: Sequence[KeyShape], weights: RandomWeights, dtype: str) -> None:
    """Writes the tensors in order, dtype "BF16" or "F32". Threads fill the file, each tensor at its own place."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offsets, end = [], 0
    for key, shape in keys:
        start, end = end, end + math.prod(shape) * _ITEM_SIZE[dtype]
        offsets.append(start)
        header[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + end)

    stop = threading.Event()

    def fill(index: int) -> None:
        with path.open("r+b") as file:
            file.seek(8 + len(head) + offsets[index])
            for block in weights.blocks(*keys[index]):
                if stop.is_set():
                    return
                file.write(to_bfloat16(block).tobytes() if dtype == "BF16" else block.tobytes())

    largest_first = sorted(range(len(keys)), key=lambda i: -math.prod(keys[i][1]))
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        try:
            for _ in pool.map(fill, largest_first):
                pass
        except BaseException:  # also Ctrl-C: let the threads end at their next block
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
