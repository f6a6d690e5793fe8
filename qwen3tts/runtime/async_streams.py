"""The two streams for asyncio: each step runs in a worker thread, so the event loop is never blocked.

A step whose awaiter was cancelled goes on in its thread; the next awaiter gets what it made, a chunk or an error.
"""

import asyncio
import contextvars
import logging
import threading
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Self

from qwen3tts.runtime.protocols import FinishReason
from qwen3tts.runtime.streams import AudioChunk, SpeechStream
from qwen3tts.runtime.text_stream import Finished, NeedMoreText, TextStream

logger = logging.getLogger(__name__)

StepResult = AudioChunk | NeedMoreText | Finished


def _fulfil(step: "Future[StepResult]", make: Callable[[], StepResult]) -> None:
    try:
        result = make()
    except BaseException as error:
        step.set_exception(error)  # raised by whoever awaits the step
        del step  # or the error's traceback would keep the error
    else:
        step.set_result(result)


class AsyncStream(AsyncIterator[AudioChunk]):
    """What both have in common: one step at a time, none of them lost, and closing."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        """readers come one after the other, so chunks are handed out in the order of the asking"""
        self._pending: Future[StepResult] | None = None
        """The step that was begun and whose end nobody has seen. Not an asyncio future, which a cancelled awaiter would
        cancel and which would complain of an error that nobody has seen."""

    @abstractmethod
    def _step(self) -> StepResult:
        """Runs in a worker thread."""

    @abstractmethod
    def _close(self) -> None:
        """Runs in a worker thread, perhaps beside a step."""

    def _begin(self) -> "Future[StepResult]":
        step: Future[StepResult] = Future()
        step.set_running_or_notify_cancel()  # from here on it cannot be cancelled
        context = contextvars.copy_context()
        asyncio.get_running_loop().run_in_executor(None, context.run, _fulfil, step, self._step)
        return step

    async def _outcome(self, step: "Future[StepResult]") -> StepResult:
        """Waits for the step; its end has been seen, unless the waiting was cancelled."""
        try:
            result = await asyncio.wrap_future(step)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._pending = None
            del step  # as above
            raise
        self._pending = None
        return result

    async def _result(self) -> StepResult:
        if self._pending is None:
            self._pending = self._begin()
        return await self._outcome(self._pending)

    async def aclose(self) -> None:
        """Stops and frees everything, after the step in progress, whose chunk is dropped and whose error is raised."""
        await asyncio.to_thread(self._close)
        async with self._turn:  # a reader that still waits sees the step's end itself
            if self._pending is not None:
                await self._outcome(self._pending)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            await self.aclose()
        except Exception as late:
            if error is None:
                raise
            # The error (or cancellation) that ends the block is the one to go on.
            logger.warning("A step that was left behind has failed: %s", late, exc_info=late)


class AsyncSpeechStream(AsyncStream):
    """`async for chunk in tts.astream(...)`; `async with` closes it. The prompt runs with the first chunk."""

    def __init__(self, open_stream: Callable[[], SpeechStream], seed: int) -> None:
        super().__init__()
        self._open, self._closed = open_stream, False
        self._lock = threading.Lock()
        """opening and closing exclude each other; a cancelled first step opens in its thread all the same"""
        self._stream: SpeechStream | None = None
        self.seed = seed

    @property
    def finish_reason(self) -> FinishReason | None:
        """As SpeechStream.finish_reason."""
        return None if self._stream is None else self._stream.finish_reason

    def _step(self) -> StepResult:
        with self._lock:
            if self._closed:
                return Finished()
            if self._stream is None:
                self._stream = self._open()
        return next(self._stream, Finished())

    def _close(self) -> None:
        with self._lock:
            self._closed = True
        if self._stream is not None:
            self._stream.close()

    async def __anext__(self) -> AudioChunk:
        async with self._turn:
            result = await self._result()
        if isinstance(result, AudioChunk):
            return result
        raise StopAsyncIteration


class AsyncTextStream(AsyncStream):
    """The same for text that arrives in pieces. Made by TTS.aopen_text_stream, inside a running event loop.

    Waiting for text takes no thread, so any number of streams may wait."""

    def __init__(self, stream: TextStream) -> None:
        super().__init__()
        self.stream = stream
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        self._news = news

        def wake() -> None:  # holds neither stream, so that an abandoned one is freed at once
            try:
                loop.call_soon_threadsafe(news.set)
            except RuntimeError:
                if not loop.is_closed():  # else nobody waits any more
                    raise

        stream.on_news = wake

    @property
    def finish_reason(self) -> FinishReason | None:
        """As TextStream.finish_reason."""
        return self.stream.finish_reason

    def _step(self) -> StepResult:
        return self.stream.poll()

    def _close(self) -> None:
        self.stream.close()

    def _begin(self) -> "Future[StepResult]":
        self._news.clear()  # news that come during the step stay: it may have looked before them
        return super()._begin()

    async def __anext__(self) -> AudioChunk:
        async with self._turn:
            while True:
                result = await self._result()
                if isinstance(result, AudioChunk):
                    return result
                if isinstance(result, Finished):
                    raise StopAsyncIteration
                await self._news.wait()

    async def push_text(self, text: str) -> None:
        """As TextStream.push_text, which may be called as well, from any thread.

        The text is read here, in the event loop, some microseconds a character: a few words are nothing, a million
        characters are seconds. Push such a text with `await asyncio.to_thread(stream.stream.push_text, text)`."""
        self.stream.push_text(text)

    async def finish(self) -> None:
        """As TextStream.finish. Reads what is still held back, as push_text does."""
        self.stream.finish()
