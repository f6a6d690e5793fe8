"""Speech while it is made: a stream pulls frames of its own row and decodes them with the codec's state kept.

The joined chunks equal the one-shot audio, because no window is decoded again; a stream's memory does not grow.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qwen3tts.options import StreamOptions
from qwen3tts.runtime.engine import Engine, RowSpec
from qwen3tts.runtime.protocols import FinishReason, FrameBatch, RowRequest, Slot
from qwen3tts.runtime.turns import Turns


@dataclass(frozen=True, eq=False)
class AudioChunk:
    """A piece of a stream's audio."""

    samples: NDArray[np.float32]
    """[frames * 1920] in [-1, 1]"""
    sample_rate: int
    codes: NDArray[np.int16]
    """[frames, 16]"""
    first_frame: int
    """index of its first frame in the speech"""
    seconds: float
    """since the request"""
    final: bool
    """nothing follows"""

    @property
    def frames(self) -> int:
        """Code frames of 80 ms."""
        return len(self.codes)


class RowPlayer:
    """One admitted row and its codec stream. Every method must be called inside a turn, except `abandon`."""

    def __init__(
        self, engine: Engine, turns: Turns, spec: RowSpec, request: RowRequest, options: StreamOptions
    ) -> None:
        self.engine, self.turns, self.options = engine, turns, options
        self.frames = 0
        self.finish_reason: FinishReason | None = None
        runtime = engine.runtime
        self._slot: Slot | None = runtime.frames.admit([request], wait=False)[0]
        self._context = torch.zeros(0, runtime.config.talker.num_code_groups, dtype=torch.int64)
        if spec.voice.ref_codes is not None:
            self._context = torch.from_numpy(spec.voice.ref_codes.astype(np.int64))
        try:
            self._codec = engine.open_codec(spec.voice.ref_codes)
            turns.players.add(self)
        except BaseException:
            self.close()
            raise

    def advance(self, frames: int) -> Tensor:
        """Up to `frames` new frames: int64 [n, 16]; fewer when the text has run out or the speech ends."""
        if self._slot is None:
            return torch.zeros(0, self._context.shape[1], dtype=torch.int64)
        made: FrameBatch = self.engine.runtime.frames.advance(frames, (self._slot,))
        codes = made.codes[0, : made.counts[0]] if made.slots else self._context[:0]
        self.frames += len(codes)
        if made.slots and made.finished[0] is not None:
            self.finish(made.finished[0])
        return codes

    def add_text(self, rows: Tensor, last: bool) -> None:
        """More text rows of a row that waits for them."""
        if self._slot is not None:
            self.engine.runtime.frames.add_text(self._slot, rows, last)

    def finish(self, reason: FinishReason) -> None:
        """The speech is over; frees the row, keeps the codec for the frames that are still to be decoded."""
        self.finish_reason = reason
        self._release()

    def decode(self, codes: Tensor) -> NDArray[np.float32]:
        """Samples of the next frames."""
        runtime, context = self.engine.runtime, self.options.left_context_frames
        if context is None:
            return runtime.codec.decode([self._codec], [codes])[0].numpy()
        window = torch.cat((self._context[len(self._context) - min(context, len(self._context)) :], codes))
        self._context = window[len(window) - min(context, len(window)) :]
        state = runtime.codec.open()
        samples = runtime.codec.decode([state], [window])[0]
        runtime.codec.close(state)
        return samples[(len(window) - len(codes)) * runtime.config.codec.samples_per_frame :].numpy()

    def _release(self) -> None:
        if self._slot is not None:
            slot, self._slot = self._slot, None
            self.engine.runtime.frames.release(slot)

    def close(self) -> None:
        """Frees the row and the codec's state. May be called again."""
        self._release()
        self.turns.players.discard(self)
        codec, self._codec = getattr(self, "_codec", None), None
        if codec is not None:
            self.engine.runtime.codec.close(codec)
        self._context = self._context[:0].clone()

    def abandon(self) -> None:
        """As close, from anywhere: frees the row as soon as nobody is computing."""
        slot, self._slot = self._slot, None
        self.turns.players.discard(self)
        if slot is not None:
            self.turns.abandon(slot)


class BaseStream(Iterator[AudioChunk]):
    """What streams share: chunk sizes, closing, and freeing everything when closed, failed or collected."""

    def __init__(self, tts: Any, options: StreamOptions, seed: int, started: float) -> None:
        self._tts, self._options, self._started = tts, options, started
        self._player: RowPlayer | None = None
        self._chunks = 0
        self._closed = False
        self.seed = seed
        tts.turns.watch(self)

    @property
    def finish_reason(self) -> FinishReason | None:
        """None until the speech has ended; also None if the stream was closed before."""
        return None if self._player is None else self._player.finish_reason

    @property
    def frames(self) -> int:
        """Frames made so far."""
        return 0 if self._player is None else self._player.frames

    @property
    def closed(self) -> bool:
        """Nothing follows: it was closed, or has ended or failed."""
        return self._closed

    @property
    def started(self) -> bool:
        """It was given a row."""
        return self._player is not None

    def _chunk_size(self) -> int:
        ramp = self._options.chunk_frames
        return ramp[min(self._chunks, len(ramp) - 1)]

    def _chunk(self, player: RowPlayer, codes: Tensor) -> AudioChunk:
        samples = player.decode(codes)
        self._chunks += 1
        chunk = AudioChunk(
            samples,
            self._tts.sample_rate,
            codes.numpy().astype(np.int16),
            player.frames - len(codes),
            time.perf_counter() - self._started,
            player.finish_reason is not None,
        )
        if chunk.final:
            self.close()
        return chunk

    def _guarded(self, step: Callable[[], Any]) -> Any:
        """Runs one step in a turn; an error of any kind closes the stream, which then ends. Only the error that the
        model was closed is raised at every step."""
        with self._tts.turns:
            if not self._closed:
                _ = self._tts.engine  # refuses after the model's close()
            try:
                return step()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Stops and frees everything. May be called again, from any thread."""
        self._closed = True
        with self._tts.turns:
            if self._player is not None:
                self._player.close()

    def model_closed(self) -> None:
        """The model closes, and calls this inside its turn: frees everything. Later steps say what has happened."""
        if self._player is not None:
            self._player.close()

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        player = getattr(self, "_player", None)
        if player is not None:
            player.abandon()


class SpeechStream(BaseStream):
    """Speech of a whole text, chunk by chunk: iterate it. Made by TTS.stream."""

    def __init__(self, tts: Any, spec: RowSpec, options: StreamOptions) -> None:
        super().__init__(tts, options, spec.seed, time.perf_counter())
        self._guarded(lambda: self._begin(spec))

    def _begin(self, spec: RowSpec) -> None:
        engine: Engine = self._tts.engine
        self._player = RowPlayer(engine, self._tts.turns, spec, engine.request(spec), self._options)

    def __next__(self) -> AudioChunk:
        def step() -> AudioChunk:
            player = self._player
            if self._closed or player is None:
                raise StopIteration
            return self._chunk(player, player.advance(self._chunk_size()))

        chunk: AudioChunk = self._guarded(step)
        return chunk
