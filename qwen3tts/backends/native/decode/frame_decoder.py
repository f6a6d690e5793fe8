"""FrameDecoder on the decode core: whole frames on the device, the host only says how many and reads the codes.

Every method waits for what it has launched, so between two calls nothing runs and the host may write what it likes.
After an interrupt in the middle of one, the next method waits first and takes over what the device has done."""

import contextlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qwen3tts.backends.native.decode.capture import Captured, bucket_for, buckets, capture_graphs
from qwen3tts.backends.native.decode.pages import PageAllocator
from qwen3tts.backends.native.decode.state import PAGE, DecoderState, pool_pages
from qwen3tts.backends.native.decode.weights import DecodeWeights
from qwen3tts.backends.native.module import Native
from qwen3tts.backends.native.sampler import SamplerRow
from qwen3tts.backends.torch.frame_decoder import positions_needed
from qwen3tts.backends.torch.picking import MIN_TOKENS, not_finite
from qwen3tts.errors import CapacityError, OptionError
from qwen3tts.model.talker import Talker
from qwen3tts.runtime.protocols import FinishReason, FrameBatch, RowRequest, Slot

MAX_SLOTS = 64
FRAMES_PER_WAIT = 32
"""frames launched before the host waits for codes: it sees the end of a speech at most so many frames late"""
_REASONS: tuple[FinishReason | None, ...] = (None, "eos", "length")
"""FinishedCode of csrc/common/decode/frame.h"""


@dataclass(eq=False)
class _Row:
    """One request while it runs."""

    slot: Slot
    place: int
    """the slot on the device: its number there"""
    max_frames: int
    trailing: Tensor
    text_complete: bool
    frames: int = 0
    finished: FinishReason | None = None
    reported: bool = False
    """the caller knows that it has finished"""

    def limit(self, more: int) -> int:
        """The frame number at which it pauses when it is asked for so many more."""
        limit = min(self.frames + more, self.max_frames)
        return limit if self.text_complete else max(self.frames, min(limit, self.trailing.shape[0]))


class NativeFrameDecoder:
    """See runtime.protocols.FrameDecoder. Not thread-safe: one caller at a time.

    Rows that draw from a torch generator are refused (see mixed.py)."""

    def __init__(
        self,
        native: Native,
        talker: Talker,
        text_padding: Tensor,
        *,
        slots: int,
        max_positions: int,
        kv_bytes: int | None,
        frames_per_replay: int,
        page: int = PAGE,
        graphs: bool = True,
    ) -> None:
        """talker: in the form of weights.store_for_kernels. text_padding [hidden]: the text row of frames past the end
        of the text. kv_bytes: see state.pool_pages. page: positions of a page, a power of two from 8 up. graphs: False
        launches everything eagerly, with the same results.

        Raises KernelArgumentError for weights, ValueError for sizes that the kernels cannot take."""
        if not 1 <= slots <= MAX_SLOTS:
            raise ValueError(f"{slots} slots, expected 1 to {MAX_SLOTS}")
        if not 1 <= frames_per_replay <= FRAMES_PER_WAIT:
            raise ValueError(f"{frames_per_replay} frames per replay, expected 1 to {FRAMES_PER_WAIT}")
        self.native, self.device, self.dtype = native, talker.device, talker.dtype
        self.slots, self.max_positions, self.kv_bytes = slots, max_positions, kv_bytes
        self.frames_per_replay = frames_per_replay
        self.pages = PageAllocator(pool_pages(talker, slots, max_positions, kv_bytes, page), page)
        self.weights = DecodeWeights(talker, text_padding)
        pages_per_slot = min(self.pages.pages_for(max_positions), self.pages.pages)
        self.state = DecoderState(talker, slots, self.pages, pages_per_slot, FRAMES_PER_WAIT, frames_per_replay)
        self._rows: dict[Slot, _Row] = {}
        self._places = list(range(slots))
        self._next_slot = 0
        self._unread = False
        """something was launched that nobody has waited for"""
        self._buckets = buckets(slots)
        self.captured: tuple[Captured, ...] = ()
        with self._on_device():
            self._core = self._new_core()
            if graphs:
                depths = (1, frames_per_replay)
                self.captured = capture_graphs(self._core, self._buckets, depths, self.device, native.stream())
                self._wait()
        self._graphs = {(graph.rows, graph.frames) for graph in self.captured}

    def _new_core(self) -> Any:
        state, weights = self.state, self.weights.fields
        fields = weights | {
            "state": state.fields(),
            "talker": weights["talker"] | {"pool": state.talker_pool()},
            "predictor": weights["predictor"] | {"pool": state.slot_pool()},
            "suppressed": state.suppressed.data_ptr(),
            "ring": state.ring.data_ptr(),
            "ring_frames": state.per_replay,
            "workspace": 0,
            "workspace_size": 0,
        }
        decoder = self.native.module.Decoder
        size = decoder.workspace_bytes(fields)
        with torch.inference_mode(False):
            self._workspace = torch.zeros(size, dtype=torch.uint8, device=self.device)
        return decoder(fields | {"workspace": self._workspace.data_ptr(), "workspace_size": size})

    def close(self) -> None:
        """Frees graphs, device memory and the hold on the weights; only release() works afterwards. May be called
        again."""
        self._core, self.captured = None, ()
        self._workspace = self._workspace.new_empty(0)
        self.weights.close()
        self.state.close()

    @property
    def nbytes(self) -> int:
        """Device memory beyond the model's weights, graphs included."""
        graphs = sum(graph.nbytes for graph in self.captured)
        return self.state.nbytes + self._workspace.nbytes + self.weights.projected_bytes + graphs

    # ------------------------------------------------------------ slots

    def free_slots(self) -> int:
        """See FrameDecoder."""
        return len(self._places)

    def open_slots(self) -> frozenset[Slot]:
        """See FrameDecoder."""
        return frozenset(self._rows)

    def room_for(self, rows: Sequence[RowRequest]) -> int:
        """See FrameDecoder. Raises OptionError for a row that draws from a torch generator."""
        for row in rows:
            self._check_alone(row)
        count, free = 0, self.pages.free
        for row in rows[: self.free_slots()]:
            free -= self.pages.pages_for(positions_needed(row))
            if free < 0:
                break
            count += 1
        return count

    def _check_alone(self, row: RowRequest) -> None:
        if row.generator is not None:
            raise OptionError(
                "rng='torch' needs the plain decoder, and this one draws on the device. Load with profile='reference' "
                "for the official package's draws, or leave rng at 'philox'."
            )
        need = positions_needed(row)
        what = f"({row.prefill.shape[0]} for its prompt, {row.max_frames} for its frames)"
        if need > self.max_positions:
            raise CapacityError(
                f"A text needs {need} positions {what}, but {self.max_positions} are available. Shorten the text or "
                "max_frames."
            )
        pages = self.pages.pages_for(need)
        if pages > self.pages.pages:
            raise CapacityError(
                f"A text needs {need} positions {what}, which take {pages} pages of keys and values; there are "
                f"{self.pages.pages} in all. Shorten the text or max_frames, or load with more kv_bytes."
            )

    def admit(self, rows: Sequence[RowRequest]) -> list[Slot]:
        """See FrameDecoder. Raises NumericsError, admitting none, if the prompts' logits are not finite."""
        room = self.room_for(rows)
        if room < len(rows):
            raise CapacityError(
                f"There is room for {room} of {len(rows)} texts: {self.free_slots()} of {self.slots} slots are free. "
                "Close a stream, or load with more max_streams or kv_bytes."
            )
        if not rows:
            return []
        admitted: list[_Row] = []
        try:
            with self._on_device():
                for request in rows:
                    admitted.append(self._take_place(request))
                self._prefill(admitted, rows)
        except BaseException:
            for row in reversed(admitted):
                self._give_back(row)
            raise
        self._rows.update((row.slot, row) for row in admitted)
        return [row.slot for row in admitted]

    def _take_place(self, request: RowRequest) -> _Row:
        """Pages and the lowest free place for a request, and all that the core must know of it."""
        place = heapq.heappop(self._places)
        try:
            self.state.write_pages(place, self.pages.reserve(place, positions_needed(request)))
            talker = SamplerRow(request.talker, request.seed, request.part, request.repetition_penalty, MIN_TOKENS)
            self.state.write_sampling(place, talker, SamplerRow(request.predictor, request.seed, request.part))
            trailing = self._text(request.trailing)
            row = _Row(Slot(self._next_slot), place, request.max_frames, trailing, request.text_complete)
            self._next_slot += 1
            self.state.written["max_frames"][place] = row.max_frames
            self._write_text(row)
        except BaseException:
            self.pages.release(place)
            heapq.heappush(self._places, place)
            raise
        return row

    def _give_back(self, row: _Row) -> None:
        self.state.written["limit"][row.place] = 0
        self.pages.release(row.place)
        heapq.heappush(self._places, row.place)

    def release(self, slot: Slot) -> None:
        """See FrameDecoder."""
        row = self._rows.pop(slot, None)
        if row is not None:
            self._give_back(row)

    # ------------------------------------------------------------ prompts and text

    def _prefill(self, rows: Sequence[_Row], requests: Sequence[RowRequest]) -> None:
        """Runs the prompts of all rows in one call and draws their first codes."""
        counts = [request.prefill.shape[0] for request in requests]
        x = torch.cat([request.prefill.to(self.device, self.dtype) for request in requests])  # a copy: overwritten
        places, ends = [row.place for row in rows], torch.tensor(counts).cumsum(0)
        parts = (
            ("slot", torch.tensor(places).repeat_interleave(torch.tensor(counts))),
            ("position", torch.cat([torch.arange(count) for count in counts])),
            ("slots", torch.tensor(places)),
            ("counts", torch.tensor(counts)),
            ("last", ends - 1),
        )
        packed = torch.cat([part for _, part in parts]).to(torch.int32).to(self.device)
        fields, offset = {"x": x.data_ptr(), "positions": x.shape[0], "prompts": len(rows)}, packed.data_ptr()
        for name, part in parts:
            fields[name] = offset
            offset += part.numel() * packed.element_size()
        self._unread = True
        self.state.upload()
        self._core.prefill(fields, self.native.stream())
        self._read(rows)

    def _text(self, rows: Tensor) -> Tensor:
        """Text rows [S, hidden] as the core reads them."""
        return rows.detach().to(self.device, self.dtype).contiguous()

    def _write_text(self, row: _Row) -> None:
        self.state.written["text"][row.place] = row.trailing.data_ptr()
        self.state.written["text_rows"][row.place] = row.trailing.shape[0]

    def add_text(self, slot: Slot, rows: Tensor, last: bool) -> None:
        """See FrameDecoder. The device learns of it with the next frames."""
        row = self._rows[slot]
        if row.text_complete:
            raise ValueError("the text of this slot is complete")
        with self._on_device():
            row.trailing, row.text_complete = torch.cat((row.trailing, self._text(rows))), last
            self._write_text(row)

    def hidden(self, slots: Sequence[Slot]) -> Tensor:
        """The talker's last hidden states of some slots, [slots, hidden], copied: for checks."""
        return self.state.hidden[[self._rows[slot].place for slot in slots]]

    # ------------------------------------------------------------ frames

    def advance(self, frames: int, slots: Sequence[Slot] | None = None) -> FrameBatch:
        """See FrameDecoder. Raises NumericsError if logits of one of these slots were not finite."""
        chosen = self._rows if slots is None else {slot: self._rows[slot] for slot in slots}
        with self._on_device():
            active = [row for row in chosen.values() if not row.reported]
            before, places = [row.frames for row in active], [row.place for row in active]
            limits = self._allow(active, frames)
            # A row makes frames from the first one of a launch on, until it makes none for the rest of this call.
            made: list[Tensor] = [torch.zeros(0, len(active), self.state.groups, dtype=torch.int64)]
            while running := [row for row in active if row.finished is None and row.frames < limits[row]]:
                count = min(max(limits[row] - row.frames for row in running), FRAMES_PER_WAIT)
                self._launch(running, count)
                self._read(active)
                made.append(self.state.fetched_codes(places, count))
        counts = tuple(row.frames - start for row, start in zip(active, before, strict=True))
        codes = torch.cat(made)[: max(counts, default=0)].transpose(0, 1)
        for row in active:
            row.reported = row.finished is not None
        return FrameBatch(tuple(row.slot for row in active), codes, counts, tuple(row.finished for row in active))

    def _allow(self, active: Sequence[_Row], frames: int) -> dict[_Row, int]:
        """Tells the device at which frame each slot pauses: those that are not asked stay where they are."""
        limits = {row: row.limit(frames) for row in active}
        for row in self._rows.values():
            self.state.written["limit"][row.place] = limits.get(row, row.frames)
        return limits

    def _launch(self, running: Sequence[_Row], frames: int) -> None:
        """So many frames of all places up to the last one that runs."""
        rows = bucket_for(1 + max(row.place for row in running), self._buckets)
        self._unread = True
        self.state.upload()
        done, stream = 0, self.native.stream()
        while done < frames:
            depth = self.frames_per_replay if frames - done >= self.frames_per_replay else 1
            if (rows, depth) in self._graphs:
                self._core.replay(rows, depth, stream)
            else:
                self._core.frames(rows, depth, stream)
            self.state.fetch_codes(done, depth)
            done += depth

    def _read(self, rows: Sequence[_Row]) -> None:
        """Waits, and takes over how far rows are. Raises NumericsError if logits of theirs were not finite."""
        self.state.fetch_counters()
        self._wait()
        self._take_over(rows)
        status = self.state.counter("status")
        if any(status[row.place] for row in rows):
            raise not_finite(self.dtype)

    def _take_over(self, rows: Iterable[_Row]) -> None:
        frame, finished = self.state.counter("frame"), self.state.counter("finished")
        for row in rows:
            row.frames, row.finished = frame[row.place], _REASONS[finished[row.place]]

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        self._unread = False

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        """The GPU is torch's current one inside, gradients are off, and nothing is running at its beginning."""
        guard = torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()
        with guard, torch.no_grad():
            if self._unread:
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                self._catch_up()
            yield

    def _catch_up(self) -> None:
        """After an interrupt: what was made meanwhile is lost, the rows go on behind it or end there."""
        self.state.fetch_counters()
        self._wait()
        self._take_over(self._rows.values())
