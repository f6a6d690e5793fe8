"""Launches of the decode core: replays follow one another without a wait, and the host reads behind them."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from qwen3tts.backends.native.decode.capture import Captured, bucket_for
from qwen3tts.backends.native.decode.state import DecoderState
from qwen3tts.backends.native.module import Native
from qwen3tts.backends.torch.picking import not_finite
from qwen3tts.errors import BackendError
from qwen3tts.runtime.protocols import FinishReason, Slot

REPLAYS_IN_FLIGHT = 2
"""launches that the device has while the host looks at what the one before them made: the end of a speech is seen one
replay late, and the device does not wait for the host"""
_REASONS: tuple[FinishReason | None, ...] = (None, "eos", "length")
"""FinishedCode of csrc/common/decode/frame.h"""
PREDICTOR_STUCK = 4
"""kPredictorStuck of csrc/common/decode/persistent.h, in a slot's status"""


@dataclass(eq=False)
class Row:
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


class Launches:
    """What was launched on a core, and what of it the host has not read yet."""

    def __init__(self, native: Native, state: DecoderState, buckets: Sequence[int], frames_per_replay: int) -> None:
        """state: with REPLAYS_IN_FLIGHT mirrors."""
        self.native, self.state, self.buckets, self.frames_per_replay = native, state, buckets, frames_per_replay
        self.unread = False
        """something was launched that nobody has waited for"""
        self._queued: int | None = None
        """the stream that may still run what nobody has waited for, behind which the next launches come"""
        self._behind = torch.cuda.Event() if state.device.type == "cuda" else None
        """what is queued has ended"""
        self.core: Any = None
        self.captured: tuple[Captured, ...] = ()
        """the graphs of the core; all else is launched eagerly"""
        self._workspace = torch.empty(0)
        self._graphs: set[tuple[int, int]] = set()
        self._count = 0
        """of all launches: each takes the next mirror"""
        self._stuck = False
        """blocks of the persistent code predictor have waited for each other in vain"""

    def use(self, core: Any, workspace: Tensor, captured: tuple[Captured, ...]) -> None:
        """From now on this core with its workspace and graphs; what it replaces is freed. Nothing may be running."""
        self.core, self._workspace, self.captured = core, workspace, captured
        self._graphs = {(graph.rows, graph.frames) for graph in captured}

    def close(self) -> None:
        """Frees the core, its graphs and its workspace."""
        self.use(None, self._workspace.new_empty(0), ())

    @property
    def nbytes(self) -> int:
        """Device memory of graphs and workspace."""
        return self._workspace.nbytes + sum(graph.nbytes for graph in self.captured)

    def prefill(self, fields: dict[str, int], rows: Collection[Row], wait: bool) -> None:
        """Runs the prompts of some rows. Waits, and raises NumericsError if logits of theirs were not finite; or leaves
        both to the rows' next frames."""
        self.unread = True
        stream = self.native.stream()
        self.state.upload()
        self.core.prefill(fields, stream)
        if wait:
            if self._read(rows):
                self._fail()
        else:
            self._queue(stream)
            self.unread = False

    def frames(self, active: Sequence[Row], limits: dict[Row, int]) -> list[Tensor]:
        """Launches frames until every row has reached its limit or its end: the codes of each launch, int64
        [frames, rows, groups]. A row makes frames from the first launch on, until it makes none for the rest.

        Raises NumericsError, when all launches have ended, if logits of one of these rows were not finite, and
        BackendError if the code predictor's kernel has given up."""
        in_flight: deque[tuple[int, int]] = deque()
        made: list[Tensor] = []
        places = [row.place for row in active]
        launched, failed, self.unread = 0, False, True
        self.state.upload()
        asked = max((limits[row] - row.frames for row in active if row.finished is None), default=0)
        while True:
            running = [row for row in active if row.finished is None and row.frames < limits[row]]
            while running and launched < asked and len(in_flight) < REPLAYS_IN_FLIGHT and not failed:
                in_flight.append(self.launch(running, asked - launched))
                launched += in_flight[-1][1]
            if not in_flight:
                break
            mirror, frames = in_flight.popleft()
            self.state.wait(mirror)
            self._queued = None
            failed |= self._take_over(active, mirror)
            made.append(self.state.fetched_codes(mirror, places, frames))
        self.unread = False
        if failed:
            self._fail()
        return made

    def _fail(self) -> NoReturn:
        """Says what the status of a row meant. Nothing is running."""
        if not self._stuck:
            raise not_finite(self.state.hidden.dtype)
        self._clear_exchange()
        raise BackendError(
            "Blocks of the persistent code predictor waited for each other in vain, so this speech is lost. Another "
            "process may hold the GPU; try again, or use persistent_predictor=False of custom-kernels."
        )

    def catch_up(self, rows: Collection[Row]) -> None:
        """The host may write its mirrors again, and what was launched runs ahead of what will be on this stream.

        After an interrupt: what was made meanwhile is lost, the rows go on behind it or end there."""
        if self._queued is not None and self._queued != self.native.stream():
            self.settle()
        elif self._queued is not None and self._behind is not None:
            self._behind.wait()  # the same number need not be the same stream, in another thread or later on
        self.state.wait_for_upload()
        if self.unread or self._stuck:  # the interrupt may have hidden that blocks were stuck
            self.settle()
            self._clear_exchange()
        if self.unread:
            self._read(rows)

    def _clear_exchange(self) -> None:
        """The persistent code predictor may run again."""
        stream = self.native.stream()
        self.core.clear_exchange(stream)
        self._queue(stream)
        self._stuck = False

    def _queue(self, stream: int) -> None:
        """What was launched on this stream goes on while the host does."""
        self._queued = stream
        if self._behind is not None:
            self._behind.record()

    @property
    def busy(self) -> bool:
        """Something that was launched may still run."""
        return self.unread or self._queued is not None

    def settle(self) -> None:
        """Waits for all that was launched."""
        if self.state.device.type == "cuda":
            torch.cuda.synchronize(self.state.device)
        self._queued = None

    def launch(self, running: Sequence[Row], frames: int) -> tuple[int, int]:
        """One launch, of at most so many frames of all places up to the last one that runs: the mirror that its results
        go to, and its frames."""
        rows = bucket_for(1 + max(row.place for row in running), self.buckets)
        depth, stream = self.frames_per_replay if frames >= self.frames_per_replay else 1, self.native.stream()
        self.unread = True
        if (rows, depth) in self._graphs:
            self.core.replay(rows, depth, stream)
        else:
            self.core.frames(rows, depth, stream)
        return self._fetch(depth), depth

    def _fetch(self, frames: int) -> int:
        """Has the counters and so many frames' codes copied: the mirror that they go to."""
        mirror = self._count % REPLAYS_IN_FLIGHT
        self._count += 1
        self.state.fetch(mirror, frames)
        return mirror

    def _read(self, rows: Collection[Row]) -> bool:
        """Waits, and takes over how far rows are; whether logits of theirs were not finite."""
        mirror = self._fetch(0)
        self.state.wait(mirror)
        failed = self._take_over(rows, mirror)
        self._queued, self.unread = None, False
        return failed

    def _take_over(self, rows: Collection[Row], mirror: int) -> bool:
        frame, finished, status = (self.state.counter(name, mirror) for name in ("frame", "finished", "status"))
        for row in rows:
            row.frames, row.finished = frame[row.place], _REASONS[finished[row.place]]
        self._stuck |= any(status[row.place] & PREDICTOR_STUCK for row in rows)
        return any(status[row.place] for row in rows)
