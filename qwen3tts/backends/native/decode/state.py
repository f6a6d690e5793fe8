"""The tensors that the decode core works in, allocated once, and their mirrors on the host.

What the host writes of a slot lies in one block, so that it goes to the device in one copy in stream order; what it
reads back are four counters per slot and the codes. The mirrors are pinned on a GPU: copies wait for nothing."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qwen3tts.backends.native.decode.pages import PageAllocator
from qwen3tts.backends.native.sampler import SamplerRow, pack_rows
from qwen3tts.model.config import TransformerConfig
from qwen3tts.model.kv_cache import kv_bytes_per_position
from qwen3tts.model.sampling import suppressed_tokens
from qwen3tts.model.talker import Talker

PAGE = 32
"""positions of a page, if nothing else is asked for"""
PREDICTOR_POSITIONS = 16
"""kPredictorPositions of csrc/common/decode/attention.h"""
POSITIONS_AT_FIRST = 1280
"""of the pool, for each of up to STREAMS_AT_FIRST streams, where neither kv_bytes nor kv_positions is given: a prompt
and 1,000 frames"""
STREAMS_AT_FIRST = 4
RECORD = 40
"""bytes of a SamplerRow"""

_HOST_WRITTEN = (
    ("text", np.dtype(np.int64), 1),
    ("talker", np.dtype(np.uint8), RECORD),
    ("predictor", np.dtype(np.uint8), RECORD),
    ("limit", np.dtype(np.int32), 1),
    ("max_frames", np.dtype(np.int32), 1),
    ("text_rows", np.dtype(np.int32), 1),
)
"""fields of FrameState (csrc/common/decode/frame.h) that are marked "host": name, element, elements per slot"""
_COUNTERS = ("frame", "position", "finished", "status")


@dataclass(frozen=True)
class PoolSize:
    """Pages of keys and values: how many there are at first, and how many there may come to be."""

    first: int
    most: int

    @classmethod
    def of(
        cls, talker: Talker, slots: int, max_positions: int, kv_bytes: int | None, kv_positions: int | None, page: int
    ) -> "PoolSize":
        """kv_bytes: all of it in whole pages at once, and no more. None: kv_positions (None: POSITIONS_AT_FIRST for
        each of a few streams) at first, and more when texts need them. Never more than all slots can use."""
        most = slots * -(-max_positions // page)
        if kv_bytes is not None:
            each = page * kv_bytes_per_position(talker.config.transformer, talker.dtype)
            fixed = max(1, min(kv_bytes // each, most))
            return cls(fixed, fixed)
        wanted = kv_positions or POSITIONS_AT_FIRST * min(slots, STREAMS_AT_FIRST)
        return cls(min(-(-wanted // page), most), most)


@dataclass(frozen=True)
class _Mirror:
    """What the host reads of one launch."""

    counters: Tensor
    codes: Tensor
    copied: torch.cuda.Event | None
    """None without a GPU, where copies are there at once"""


class DecoderState:
    """State of all slots on the device, and what of it the host writes and reads."""

    def __init__(
        self,
        talker: Talker,
        slots: int,
        pages: PageAllocator,
        pages_per_slot: int,
        in_flight: int,
        per_replay: int,
    ) -> None:
        """in_flight: launches of the core that the host may be behind; per_replay: frames in one of them."""
        config, self.device, dtype = talker.config, talker.device, talker.dtype
        self.slots, self.groups, self.vocab = slots, config.num_code_groups, config.vocab_size
        self.hidden_size, self.per_replay = config.transformer.hidden_size, per_replay
        with torch.inference_mode(False):
            self.counters = self._zeros(len(_COUNTERS), slots)
            self.codes = self._zeros(slots, self.groups)
            self.seen = self._zeros(slots, self.vocab, dtype=torch.uint8)
            self.hidden = self._zeros(slots, self.hidden_size, dtype=dtype)
            self.ring = self._zeros(per_replay, slots, self.groups)
            self.table = self._zeros(slots, pages_per_slot)
            self.pool = self._pool(config.transformer, pages.pages, pages.page, dtype)
            # Idle rows' places are loaded, too, and not looked at (`in_order` of attention.h): zeros, once, so that
            # nothing is ever read that nobody wrote. Of `pool`, only positions that were written are loaded.
            inner = config.code_predictor.transformer
            self.predictor_pool = self._pool(inner, slots, PREDICTOR_POSITIONS, dtype).zero_()
            self.suppressed = suppressed_tokens(self.vocab, config.codec_eos_id, self.device)
            self.block = self._zeros(
                sum(slots * size * kind.itemsize for _, kind, size in _HOST_WRITTEN), dtype=torch.uint8
            )
            self._block_host = self._host(self.block)
            self._table_host = self._host(self.table)
            self._mirrors = [self._mirror() for _ in range(in_flight)]
        self._uploaded = torch.cuda.Event() if self.device.type == "cuda" else None
        self._addresses: dict[str, int] = {}
        self.written: dict[str, NDArray[Any]] = {}
        """views of the block's mirror by name, [slots, ...]"""
        offset = 0
        for name, kind, size in _HOST_WRITTEN:
            end = offset + slots * size * kind.itemsize
            view = self._block_host.numpy()[offset:end].view(kind)
            self.written[name] = view.reshape(slots, size) if size > 1 else view
            self._addresses[name] = self.block.data_ptr() + offset
            offset = end

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _host(self, like: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
        shape = tuple(like.shape) if shape is None else shape
        return torch.zeros(shape, dtype=like.dtype, pin_memory=self.device.type == "cuda")

    def _mirror(self) -> _Mirror:
        copied = torch.cuda.Event() if self.device.type == "cuda" else None
        return _Mirror(self._host(self.counters), self._host(self.ring), copied)

    def _pool(self, config: TransformerConfig, pages: int, page: int, dtype: torch.dtype) -> Tensor:
        shape = (config.num_layers, 2, pages, config.num_kv_heads, page, config.head_dim)
        return torch.empty(shape, dtype=dtype, device=self.device)

    # ------------------------------------------------------------ for the core

    def fields(self) -> dict[str, Any]:
        """FrameState by the names of its fields."""
        counters = {name: self.counters[i].data_ptr() for i, name in enumerate(_COUNTERS)}
        others = {"codes": self.codes, "seen": self.seen, "hidden": self.hidden}
        sizes = {"slots": self.slots, "groups": self.groups, "vocab": self.vocab, "hidden_size": self.hidden_size}
        return counters | {name: tensor.data_ptr() for name, tensor in others.items()} | self._addresses | sizes

    def talker_pool(self) -> dict[str, int]:
        """KvPool of the talker."""
        return {
            "base": self.pool.data_ptr(),
            "table": self.table.data_ptr(),
            "table_stride": self.table.shape[1],
            "page": self.pool.shape[4],
            "pages": self.pool.shape[2],
        }

    def slot_pool(self) -> dict[str, int]:
        """KvPool of the code predictor: a page per slot."""
        base = self.predictor_pool.data_ptr()
        return {"base": base, "table": 0, "table_stride": 0, "page": PREDICTOR_POSITIONS, "pages": self.slots}

    def pool_of(self, pages: int) -> Tensor:
        """A pool of more pages with what this one holds, on the current stream. It is not in use yet."""
        layers, _, before, kv_heads, page, head_dim = self.pool.shape
        with torch.inference_mode(False):
            pool = self.pool.new_empty(layers, 2, pages, kv_heads, page, head_dim)
            pool[:, :, :before] = self.pool
        return pool

    @property
    def nbytes(self) -> int:
        """Device memory of all of it."""
        tensors = (value for value in vars(self).values() if isinstance(value, Tensor))
        return sum(tensor.nbytes for tensor in tensors if tensor.device == self.device and not tensor.is_pinned())

    def close(self) -> None:
        """Frees all of it. What the host writes from then on goes nowhere."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.new_empty(0))
        self._mirrors.clear()

    # ------------------------------------------------------------ what the host writes

    def write_sampling(self, slot: int, talker: SamplerRow, predictor: SamplerRow) -> None:
        """How the codes of a slot are drawn, in the mirror."""
        packed = pack_rows([talker, predictor], torch.device("cpu")).numpy()
        self.written["talker"][slot], self.written["predictor"][slot] = packed

    def write_pages(self, slot: int, pages: tuple[int, ...]) -> None:
        """The pages of a slot, in the mirror and, in stream order, on the device."""
        count = len(pages)
        self._table_host[slot, :count] = torch.tensor(pages, dtype=torch.int32)
        self.table[slot, :count].copy_(self._table_host[slot, :count], non_blocking=True)

    def upload(self) -> None:
        """Sends the block to the device in stream order, behind what write_pages() sends."""
        self.block.copy_(self._block_host, non_blocking=True)
        if self._uploaded is not None:
            self._uploaded.record()

    def wait_for_upload(self) -> None:
        """Returns once the mirrors may be written again."""
        if self._uploaded is not None:
            self._uploaded.synchronize()

    # ------------------------------------------------------------ what the host reads

    def fetch(self, mirror: int, frames: int) -> None:
        """Copies the counters and the codes of the launch just made, so many frames, in stream order."""
        to = self._mirrors[mirror]
        to.counters.copy_(self.counters, non_blocking=True)
        if frames:
            to.codes[:frames].copy_(self.ring[:frames], non_blocking=True)
        if to.copied is not None:
            to.copied.record()

    def wait(self, mirror: int) -> None:
        """Returns once these copies are there."""
        copied = self._mirrors[mirror].copied
        if copied is not None:
            copied.synchronize()

    def counter(self, name: str, mirror: int) -> list[int]:
        """[slots] as fetched: "frame", "finished" or "status"; valid after wait()."""
        values: list[int] = self._mirrors[mirror].counters[_COUNTERS.index(name)].tolist()
        return values

    def fetched_codes(self, mirror: int, slots: list[int], frames: int) -> Tensor:
        """int64 [frames, slots, groups]: a copy of the codes fetched, valid after wait(). What it holds of a slot that
        made fewer frames means nothing."""
        return self._mirrors[mirror].codes[:frames, slots].to(torch.int64)
