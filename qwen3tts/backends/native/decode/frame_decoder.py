"""FrameDecoder on the decode core: whole frames on the device, the host only says how many and reads the codes.

Every method waits for what it has launched, so between two calls nothing runs and the host may write what it likes; but
for prompts that were admitted without waiting, which the next call's work is queued behind. After an interrupt in the
middle of a method, the next one waits first and takes over what the device has done."""

import contextlib
import heapq
import logging
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from qwen3tts.backends.native.decode.built_core import BuiltCore, CoreOptions, build_core
from qwen3tts.backends.native.decode.capture import BUCKETS, Captured, buckets
from qwen3tts.backends.native.decode.launches import REPLAYS_IN_FLIGHT, Launches, Row
from qwen3tts.backends.native.decode.pages import PageAllocator
from qwen3tts.backends.native.decode.state import PAGE, DecoderState, PoolSize
from qwen3tts.backends.native.decode.weights import DecodeWeights
from qwen3tts.backends.native.module import Native
from qwen3tts.backends.native.sampler import SamplerRow
from qwen3tts.backends.torch.frame_decoder import positions_needed
from qwen3tts.backends.torch.picking import MIN_TOKENS
from qwen3tts.errors import CapacityError, OptionError
from qwen3tts.model.talker import Talker, to_device
from qwen3tts.runtime.protocols import FrameBatch, RowRequest, Slot

logger = logging.getLogger(__name__)

MAX_SLOTS = 64
MAX_FRAMES_PER_REPLAY = 32
FRAMES_PER_CALL = 32
ROW_ALIGNMENT = 16
"""bytes: kernels copy rows in pieces of so many"""


class NativeFrameDecoder:
    """See runtime.protocols.FrameDecoder. Not thread-safe: one caller at a time.

    Rows that draw from a torch generator are refused (see mixed.py)."""

    frames_per_call = FRAMES_PER_CALL

    def __init__(
        self,
        native: Native,
        talker: Talker,
        text_padding: Tensor,
        *,
        slots: int,
        max_positions: int,
        kv_bytes: int | None,
        kv_positions: int | None = None,
        frames_per_replay: int,
        page: int = PAGE,
        row_buckets: Sequence[int] = BUCKETS,
        graphs: bool = True,
        persistent_predictor: bool = True,
        projections: bool = False,
    ) -> None:
        """talker: in the form of weights.store_for_kernels. text_padding [hidden]: the text row of frames past the end
        of the text. kv_bytes, kv_positions: see state.PoolSize. page: positions of a page, a power of two from 8 up.
        row_buckets: numbers of rows with graphs of their own, beside that of all slots. graphs: False launches
        everything eagerly, with the same results. persistent_predictor: the code predictor of one row as one kernel,
        with the same results, where that fits (persistent_problem says why not). projections: the code predictor's
        input tables by the core's own products.

        Raises KernelArgumentError for weights, ValueError for sizes that the kernels cannot take."""
        if not 1 <= slots <= MAX_SLOTS:
            raise ValueError(f"{slots} slots, expected 1 to {MAX_SLOTS}")
        if not 1 <= frames_per_replay <= MAX_FRAMES_PER_REPLAY:
            raise ValueError(f"{frames_per_replay} frames per replay, expected 1 to {MAX_FRAMES_PER_REPLAY}")
        self.native, self.device, self.dtype = native, talker.device, talker.dtype
        self.slots, self.max_positions, self.kv_bytes = slots, max_positions, kv_bytes
        self.frames_per_replay = frames_per_replay
        size = PoolSize.of(talker, slots, max_positions, kv_bytes, kv_positions, page)
        self.pages, self.most_pages = PageAllocator(size.first, page), size.most
        self._cannot_grow = False  # the device had no memory when that was last tried
        self.weights = DecodeWeights(talker, text_padding, native if projections else None)
        logger.debug("projected the code predictor's input tables, if it has a projection")
        pages_per_slot = min(self.pages.pages_for(max_positions), size.most)
        self.state = DecoderState(talker, slots, self.pages, pages_per_slot, REPLAYS_IN_FLIGHT, frames_per_replay)
        logger.debug("allocated keys, values and the state of the slots")
        self._rows: dict[Slot, Row] = {}
        self._places = list(range(slots))
        self._next_slot = 0
        sizes = buckets(slots, row_buckets)
        self._options = CoreOptions(max_positions, sizes, frames_per_replay, graphs, persistent_predictor)
        self.launches = Launches(native, self.state, sizes, frames_per_replay)
        with self._guard():
            self._use(self._new_core())

    def _new_core(self) -> BuiltCore:
        """A core for the tensors as they are now."""
        return build_core(self.native, self.state, self.weights, self._options)

    def _use(self, made: BuiltCore) -> None:
        self.launches.use(made.core, made.workspace, made.captured)
        self._rotary = made.rotary

    @property
    def captured(self) -> tuple[Captured, ...]:
        """The graphs."""
        return self.launches.captured

    @property
    def persistent_problem(self) -> str:
        """Why the code predictor of one row is launched kernel by kernel; empty if it is one kernel."""
        problem: str = self.launches.core.persistent_problem
        return problem

    def close(self) -> None:
        """Frees graphs, device memory and the hold on the weights; only release() works afterwards. May be called
        again."""
        try:
            self.launches.settle()
        except RuntimeError as error:  # of the device, which runs nothing any more then
            logger.warning("closing a frame decoder after an error of its device: %s", error)
        self.launches.close()
        self._rotary.shorten(0)
        self.weights.close()
        self.state.close()

    def __del__(self) -> None:
        """Dropped without close(): what still runs must end before its memory is another's."""
        launches: Launches | None = getattr(self, "launches", None)
        if launches is not None and launches.busy:
            with contextlib.suppress(RuntimeError):  # of the device: nobody is there to be told
                launches.settle()

    @property
    def nbytes(self) -> int:
        """Device memory beyond the model's weights, graphs included."""
        angles = self._rotary.cos.nbytes + self._rotary.sin.nbytes
        return self.state.nbytes + self.launches.nbytes + self.weights.projected_bytes + angles

    # ------------------------------------------------------------ slots

    def free_slots(self) -> int:
        """See FrameDecoder."""
        return len(self._places)

    def open_slots(self) -> frozenset[Slot]:
        """See FrameDecoder."""
        return frozenset(self._rows)

    def room_for(self, rows: Sequence[RowRequest]) -> int:
        """See FrameDecoder. Makes the pool larger first if that lets more of them in. Raises OptionError for a row that
        draws from a torch generator."""
        for row in rows:
            self._check_alone(row)
        needs = [self.pages.pages_for(positions_needed(row)) for row in rows[: self.free_slots()]]
        # What failed once is tried again when nothing runs: an attempt costs time, and running rows give pages back.
        if sum(needs) > self.pages.free and not (self._cannot_grow and self.pages.used):
            self._grow(self.pages.used + sum(needs))
        count, free = 0, self.pages.free
        for need in needs:
            free -= need
            if free < 0:
                break
            count += 1
        if needs and count == 0 and self.pages.used == 0:  # not even alone
            raise CapacityError(
                f"A text needs {positions_needed(rows[0])} positions, which take {needs[0]} pages of keys and values; "
                f"there are {self.pages.pages}, and the device has no memory for more. Shorten the text or max_frames, "
                "or free memory on the device."
            )
        return count

    def _grow(self, wanted: int) -> None:
        """More pages: twice as many as before, else so many, as far as the device's memory goes; else none."""
        now, wanted = self.pages.pages, min(wanted, self.most_pages)
        sizes = dict.fromkeys((min(max(wanted, 2 * now), self.most_pages), wanted))
        self._cannot_grow = not any(size > now and self._grown(size) for size in sizes)
        if self._cannot_grow and wanted > now:
            logger.warning("keys and values stay at %d pages: no memory for %d", now, wanted)

    def _grown(self, pages: int) -> bool:
        """Whether there are so many pages now. The graphs are captured anew."""
        before, started = self.state.pool, time.perf_counter()
        try:
            with self._on_device():
                self.launches.settle()  # prompts may still run on what is replaced
                self._allow([], 0)
                self.state.upload()
                self.state.pool = self.state.pool_of(pages)
                made = self._new_core()
        except RuntimeError as error:  # torch's own, or that of a graph, which says the same
            self.state.pool = before
            if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
                return False
            raise
        except BaseException:
            self.state.pool = before
            raise
        self._use(made)
        self.pages.grow(pages)
        logger.info(
            "keys and values: %d positions, %.0f MB, captured anew in %.2f s",
            pages * self.pages.page, self.state.pool.nbytes / 1e6, time.perf_counter() - started,
        )  # fmt: skip
        return True

    def _check_alone(self, row: RowRequest) -> None:
        if row.generator is not None:
            raise OptionError(
                "rng='torch' needs the plain decoder, and this one draws on the device. Load with profile='reference' "
                "for the official package's draws, or leave rng at 'philox'."
            )
        if row.prefill.shape[0] < 1:
            raise ValueError("a prompt of 0 positions, expected 1 or more")
        need = positions_needed(row)
        what = f"({row.prefill.shape[0]} for its prompt, {row.max_frames} for its frames)"
        if need > self.max_positions:
            raise CapacityError(
                f"A text needs {need} positions {what}, but {self.max_positions} are available. Shorten the text or "
                "max_frames."
            )
        pages = self.pages.pages_for(need)
        if pages > self.most_pages:
            raise CapacityError(
                f"A text needs {need} positions {what}, which take {pages} pages of keys and values; there are "
                f"{self.most_pages} in all. Shorten the text or max_frames, or load with more kv_bytes."
            )

    def admit(self, rows: Sequence[RowRequest], wait: bool = True) -> list[Slot]:
        """See FrameDecoder. Raises NumericsError, admitting none, if the prompts' logits are not finite."""
        room = self.room_for(rows)
        if room < len(rows):
            raise CapacityError(
                f"There is room for {room} of {len(rows)} texts: {self.free_slots()} of {self.slots} slots are free. "
                "Close a stream, or load with more max_streams or kv_bytes."
            )
        if not rows:
            return []
        admitted: list[Row] = []
        try:
            with self._on_device():
                for request in rows:
                    admitted.append(self._take_place(request))
                self._prefill(admitted, rows, wait)
        except BaseException:
            for row in reversed(admitted):
                self._give_back(row)
            raise
        self._rows.update((row.slot, row) for row in admitted)
        return [row.slot for row in admitted]

    def _take_place(self, request: RowRequest) -> Row:
        """Pages and the lowest free place for a request, and all that the core must know of it."""
        place = heapq.heappop(self._places)
        try:
            self.state.write_pages(place, self.pages.reserve(place, positions_needed(request)))
            talker = SamplerRow(request.talker, request.seed, request.part, request.repetition_penalty, MIN_TOKENS)
            self.state.write_sampling(place, talker, SamplerRow(request.predictor, request.seed, request.part))
            trailing = self._as_rows(request.trailing)
            row = Row(Slot(self._next_slot), place, request.max_frames, trailing, request.text_complete)
            self._next_slot += 1
            self.state.written["max_frames"][place] = row.max_frames
            self._write_text(row)
        except BaseException:
            self.pages.release(place)
            heapq.heappush(self._places, place)
            raise
        return row

    def _give_back(self, row: Row) -> None:
        self.state.written["limit"][row.place] = 0
        self.pages.release(row.place)
        heapq.heappush(self._places, row.place)

    def release(self, slot: Slot) -> None:
        """See FrameDecoder."""
        row = self._rows.pop(slot, None)
        if row is not None:
            self._give_back(row)

    # ------------------------------------------------------------ prompts and text

    def _prefill(self, rows: Sequence[Row], requests: Sequence[RowRequest], wait: bool) -> None:
        """Runs the prompts of all rows in one call and draws their first codes."""
        counts = [request.prefill.shape[0] for request in requests]
        prompts = [self._as_rows(request.prefill) for request in requests]
        x = prompts[0] if len(prompts) == 1 else torch.cat(prompts)
        if not wait and x.device.type == "cuda":
            x.record_stream(torch.cuda.current_stream(self.device))  # the caller may drop it, whose stream is another
        places = np.array([row.place for row in rows])
        parts = {
            "slot": np.repeat(places, counts),
            "position": np.concatenate([np.arange(count) for count in counts]),
            "slots": places,
            "counts": np.array(counts),
            "last": np.cumsum(counts) - 1,
        }
        packed = to_device(torch.from_numpy(np.concatenate(list(parts.values()), dtype=np.int32)), self.device)
        fields, offset = {"x": x.data_ptr(), "positions": x.shape[0], "prompts": len(rows)}, packed.data_ptr()
        for name, part in parts.items():
            fields[name] = offset
            offset += len(part) * packed.element_size()
        self.launches.prefill(fields, rows, wait)

    def _as_rows(self, rows: Tensor) -> Tensor:
        """Rows [N, hidden] as the core reads them: in its dtype, one after another, from a multiple of 16 bytes on."""
        if rows.ndim != 2 or rows.shape[1] != self.state.hidden_size:
            raise ValueError(f"rows of the shape {tuple(rows.shape)}, expected [any number, {self.state.hidden_size}]")
        rows = rows.detach().to(self.device, self.dtype).contiguous()
        return rows.clone() if rows.data_ptr() % ROW_ALIGNMENT else rows

    def _write_text(self, row: Row) -> None:
        self.state.written["text"][row.place] = row.trailing.data_ptr()
        self.state.written["text_rows"][row.place] = row.trailing.shape[0]

    def add_text(self, slot: Slot, rows: Tensor, last: bool) -> None:
        """See FrameDecoder. The device learns of it with the next frames."""
        row = self._rows[slot]
        if row.text_complete:
            raise ValueError("the text of this slot is complete")
        with self._on_device():
            row.trailing, row.text_complete = torch.cat((row.trailing, self._as_rows(rows))), last
            self._write_text(row)

    def hidden(self, slots: Sequence[Slot]) -> Tensor:
        """The talker's last hidden states of some slots, [slots, hidden], copied: for checks."""
        with self._on_device():
            return self.state.hidden[[self._rows[slot].place for slot in slots]]

    # ------------------------------------------------------------ frames

    def advance(self, frames: int, slots: Sequence[Slot] | None = None) -> FrameBatch:
        """See FrameDecoder. Raises NumericsError if logits of one of these slots were not finite."""
        chosen = self._rows if slots is None else {slot: self._rows[slot] for slot in slots}
        with self._on_device():
            active = [row for row in chosen.values() if not row.reported]
            before = [row.frames for row in active]
            limits = self._allow(active, frames)
            made = [torch.zeros(0, len(active), self.state.groups, dtype=torch.int64)]
            made += self.launches.frames(active, limits)
        counts = tuple(row.frames - start for row, start in zip(active, before, strict=True))
        # A row makes frames from the first launch on, until it makes none for the rest of this call.
        codes = torch.cat(made)[: max(counts, default=0)].transpose(0, 1)
        for row in active:
            row.reported = row.finished is not None
        return FrameBatch(tuple(row.slot for row in active), codes, counts, tuple(row.finished for row in active))

    def _allow(self, active: Sequence[Row], frames: int) -> dict[Row, int]:
        """Tells the device at which frame each slot pauses: those that are not asked stay where they are."""
        limits = {row: row.limit(frames) for row in active}
        for row in self._rows.values():
            self.state.written["limit"][row.place] = limits.get(row, row.frames)
        return limits

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """The GPU is torch's current one inside, and gradients are off."""
        guard = torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()
        with guard, torch.no_grad():
            yield

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        """As _guard, and what is still running is ahead of all that is launched inside."""
        if self.launches.core is None:
            raise RuntimeError("this frame decoder is closed")
        with self._guard():
            self.launches.catch_up(self._rows.values())
            yield
