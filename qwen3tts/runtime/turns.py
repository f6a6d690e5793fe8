"""One call at a time on a model, and slots that are freed wherever their owner dies."""

import threading
import weakref
from collections import deque
from types import TracebackType
from typing import Protocol

from qwen3tts.runtime.protocols import FrameDecoder, Slot


class EndsWithModel(Protocol):
    """Something that must not outlive the model it uses."""

    @property
    def closed(self) -> bool:
        """It has ended and holds nothing."""
        ...

    @property
    def started(self) -> bool:
        """It was given a row or a codec state."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...

    def model_closed(self) -> None:
        """Frees what it holds of the model and wakes whoever waits for it. Called inside a turn."""
        ...


class Turns:
    """A re-entrant lock around a FrameDecoder. `with turns:` is one caller's turn; calls from other threads queue.

    `abandon` may be called at any moment and from any thread, also by the garbage collector in the middle of a turn:
    the slot is freed at once if nobody is inside, otherwise when the turn ends."""

    def __init__(self, decoder: FrameDecoder) -> None:
        self.decoder = decoder
        self.players: weakref.WeakSet[object] = weakref.WeakSet()
        """streams that hold a row or a codec state"""
        self._lock = threading.RLock()
        self._depth = 0
        self._abandoned: deque[Slot] = deque()
        self._streams: weakref.WeakSet[EndsWithModel] = weakref.WeakSet()
        self._watching = threading.Lock()

    @property
    def nested(self) -> bool:
        """Inside a turn: this one was begun inside another turn of the same thread."""
        return self._depth > 1

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self._sweep()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._depth == 1:
                self._sweep()
        finally:
            self._depth -= 1
            self._lock.release()

    def abandon(self, slot: Slot) -> None:
        """Frees a slot without waiting for anybody."""
        self._abandoned.append(slot)
        if self._lock.acquire(blocking=False):
            try:
                if self._depth == 0:
                    self._sweep()
            finally:
                self._lock.release()

    def watch(self, stream: EndsWithModel) -> None:
        """Has `stream` told when the model closes, if it still exists then."""
        with self._watching:
            self._streams.add(stream)

    def open_streams(self) -> list[EndsWithModel]:
        """Those of them that are not closed, also while they still wait for their first text."""
        with self._watching:
            return [stream for stream in self._streams if not stream.closed]

    def end_streams(self) -> None:
        """Tells them. Call inside the turn that closes the model."""
        while True:
            try:
                stream = self._streams.pop()
            except KeyError:
                return
            stream.model_closed()

    def _sweep(self) -> None:
        while self._abandoned:
            self.decoder.release(self._abandoned.popleft())
