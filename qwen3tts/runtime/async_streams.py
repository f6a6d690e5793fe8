"""The two streams for asyncio: each step runs in a worker thread, so the event loop is never blocked."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Self

from qwen3tts.runtime.protocols import FinishReason
from qwen3tts.runtime.streams import AudioChunk, SpeechStream
from qwen3tts.runtime.text_stream import Finished, TextStream


class AsyncSpeechStream(AsyncIterator[AudioChunk]):
    """`async for chunk in tts.astream(...)`; `async with` closes it. The prompt runs with the first chunk.

    A cancelled step is left to end in its thread, and its chunk is lost: close the stream then."""

    def __init__(self, open_stream: Callable[[], SpeechStream], seed: int) -> None:
        self._open, self._closed = open_stream, False
        self._lock = threading.Lock()
        """opening and closing exclude each other; a cancelled first step opens in its thread all the same"""
        self._stream: SpeechStream | None = None
        self.seed = seed

    @property
    def finish_reason(self) -> FinishReason | None:
        """As SpeechStream.finish_reason."""
        return None if self._stream is None else self._stream.finish_reason

    def _next(self) -> AudioChunk | None:
        with self._lock:
            if self._closed:
                return None
            if self._stream is None:
                self._stream = self._open()
        return next(self._stream, None)

    async def __anext__(self) -> AudioChunk:
        chunk = await asyncio.to_thread(self._next)
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    def _close(self) -> None:
        with self._lock:
            self._closed = True
        if self._stream is not None:
            self._stream.close()

    async def aclose(self) -> None:
        """Stops and frees everything."""
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncTextStream(AsyncIterator[AudioChunk]):
    """The same for text that arrives in pieces. Made by TTS.aopen_text_stream, inside a running event loop.

    Waiting for text takes no thread, so any number of streams may wait."""

    def __init__(self, stream: TextStream) -> None:
        self.stream = stream
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        self._news = news

        def wake() -> None:  # holds neither stream, so that an abandoned one is freed at once
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.set)

        stream.on_news = wake

    @property
    def finish_reason(self) -> FinishReason | None:
        """As TextStream.finish_reason."""
        return self.stream.finish_reason

    async def __anext__(self) -> AudioChunk:
        while True:
            self._news.clear()
            result = await asyncio.to_thread(self.stream.poll)
            if isinstance(result, AudioChunk):
                return result
            if isinstance(result, Finished):
                raise StopAsyncIteration
            await self._news.wait()

    async def push_text(self, text: str) -> None:
        """As TextStream.push_text, which may be called as well, from any thread."""
        self.stream.push_text(text)

    async def finish(self) -> None:
        """As TextStream.finish."""
        self.stream.finish()

    async def aclose(self) -> None:
        """Stops and frees everything."""
        await asyncio.to_thread(self.stream.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
