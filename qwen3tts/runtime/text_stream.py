"""Text in, pieces at a time, speech out: the row starts with the first settled tokens, pauses when it has run out of
text, and goes on where it stopped. The same text gives the same codes however it is cut (see text.settling)."""

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qwen3tts.errors import CapacityError, TextError
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.options import TextStreamOptions
from qwen3tts.runtime.engine import Engine, RowSpec
from qwen3tts.runtime.length import default_max_frames
from qwen3tts.runtime.streams import AudioChunk, BaseStream, RowPlayer
from qwen3tts.text.settling import TextSettler


@dataclass(frozen=True)
class NeedMoreText:
    """poll(): nothing can be spoken before more text is pushed, or finish() is called."""


@dataclass(frozen=True)
class Finished:
    """poll(): the speech is over; finish_reason tells how it ended."""


class TextStream(BaseStream):
    """Made by TTS.open_text_stream. `push_text` and `finish` may be called from another thread than the one that takes
    the audio, by iterating (waits for text) or with `poll` (never waits for text)."""

    def __init__(self, tts: Any, spec: RowSpec, options: TextStreamOptions) -> None:
        super().__init__(tts, options, spec.seed, time.perf_counter())
        engine: Engine = tts.engine
        self._spec, self._text_options = spec, options
        self._settler = TextSettler(engine.template.tokenizer, options.settle)
        self._news = threading.Condition()
        self.on_news: Callable[[], None] | None = None
        """called, from the thread that pushed or closed, when a reader should look again"""
        self._ids: list[int] = []
        """settled, not yet given to the row"""
        self._tokens = 0
        """settled in all"""
        self._pushes = 0
        """counts what a waiting reader should look at"""
        self._last_given = False
        """the row knows that its text is complete"""
        self._rows = 0
        """text rows that the row's frames were given so far, one a frame"""
        self.lookahead: int | None = None
        """text tokens before the first frame, once it has started: generate() with this text_lookahead_tokens gives
        the same codes for the whole text; None before, and for voices with a reference, whose text has no lookahead"""

    @property
    def exact(self) -> bool:
        """False with settle="eager": the codes then depend on how the text was cut."""
        return self._text_options.settle == "safe"

    # ------------------------------------------------------------ the text's side

    def push_text(self, text: str) -> None:
        """Adds a piece of text. Raises TextError for what is no text, and after finish() or close(); Qwen3TTSError if
        the model was closed.

        Reads the text before it returns, some microseconds a character. Text that comes after the model has ended its
        speech is not spoken."""
        with self._news:
            if self.finish_reason is not None:
                return
            if self._closed:
                raise TextError("The stream is closed; no more text can be pushed.")
            _ = self._tts.engine  # refuses after the model's close()
            self._take(self._settler.push(text))

    def finish(self) -> None:
        """No more text follows; more calls change nothing. Raises TextError and ends the stream if all was blank;
        Qwen3TTSError if the model was closed."""
        with self._news:
            if self.finish_reason is not None or self._closed:
                return
            _ = self._tts.engine  # refuses after the model's close()
            try:
                self._take(self._settler.finish())
            except TextError:
                self._closed = True
                self._take([])
                raise

    def _take(self, ids: list[int]) -> None:
        self._ids += ids
        self._tokens += len(ids)
        self._pushes += 1
        self._wake()

    def _wake(self) -> None:
        self._news.notify_all()
        if self.on_news is not None:
            self.on_news()

    def close(self) -> None:
        """Stops and frees everything; a thread that waits for text is woken and its iteration ends."""
        super().close()
        with self._news:
            self._wake()

    def model_closed(self) -> None:
        """As BaseStream.model_closed; a thread that waits for text is woken and gets the error."""
        super().model_closed()
        with self._news:
            self._take([])

    # ------------------------------------------------------------ the audio's side

    def poll(self) -> AudioChunk | NeedMoreText | Finished:
        """The next chunk, or why there is none now. A chunk is smaller than its size when the text has run out.

        Raises CapacityError if the speech could start now but no slot is free, or too little of the memory for keys and
        values: the stream stays open, and a later call tries again. All other errors close it, also the CapacityError
        of a text that could never fit. Raises Qwen3TTSError, at every call, if the model was closed."""
        result: AudioChunk | NeedMoreText | Finished | None = self._guarded(self._step)
        if result is None:
            raise CapacityError(
                "The speech cannot start yet: all streams of this model, or all its memory for keys and values, are in "
                "use. The text is kept: close another stream and read again, or load with more max_streams or kv_bytes."
            )
        return result

    def __next__(self) -> AudioChunk:
        while True:
            with self._news:
                seen = self._pushes
            result = self.poll()
            if isinstance(result, AudioChunk):
                return result
            if isinstance(result, Finished):
                raise StopIteration
            with self._news:
                while not self._closed and self._pushes == seen:
                    self._news.wait()

    def _step(self) -> AudioChunk | NeedMoreText | Finished | None:
        """See poll; None: no slot is free."""
        if self._closed:
            return Finished()
        engine: Engine = self._tts.engine
        if self._player is None:
            spec = self._ready(engine)
            if spec is None:
                return NeedMoreText()
            if not self._start(engine, spec):
                return None
        player = self._player
        assert player is not None
        if not self._feed(engine, player):
            return NeedMoreText()
        limit = self._limit(engine)
        codes = player.advance(min(self._chunk_size(), limit - player.frames))
        if player.finish_reason is None and player.frames >= limit:
            player.finish("length")
        return self._chunk(player, codes)

    def _limit(self, engine: Engine) -> int:
        """Frames the row may make: the default depends on the length of the text, known at its end."""
        if self._spec.options.max_frames is not None or not self._last_given:
            return 1 << 62
        return default_max_frames(self._tokens, engine.max_new_tokens)

    def _ready(self, engine: Engine) -> RowSpec | None:
        """What to start the row with, if enough text has settled."""
        options = self._text_options
        with self._news:
            complete, ready = self._settler.finished, len(self._ids)
            reference = engine.reference_rows(self._spec)
            if reference is not None:
                if not complete and ready < reference:
                    return None
                lookahead = options.min_start_tokens
            elif complete or ready >= options.min_start_tokens:
                lookahead = options.min_start_tokens
            elif options.flush_on_punctuation and ready and self._settler.ends_a_clause:
                lookahead = ready
            else:
                return None
            ids = tuple(self._ids)
        return dataclasses.replace(self._spec, text=ids, text_complete=complete, lookahead=lookahead)

    def _start(self, engine: Engine, spec: RowSpec) -> bool:
        """Admits the row; False, and nothing has changed, if there is no place for it now."""
        request = engine.request(spec)
        if not engine.runtime.frames.room_for([request]):
            return False
        self._player = RowPlayer(engine, self._tts.turns, spec, request, self._options)
        given = len(spec.text)
        with self._news:
            del self._ids[:given]
        self._last_given, self._rows = spec.text_complete, len(request.trailing)
        self.lookahead = None if engine.reference_rows(spec) is not None else min(spec.lookahead, given)
        return True

    def _feed(self, engine: Engine, player: RowPlayer) -> bool:
        """Gives the row what has settled since; False if it has run out of text and has to wait for more."""
        with self._news:
            complete, ready = self._settler.finished, len(self._ids)
            dry = self._rows <= player.frames
            if dry and not complete and ready < self._text_options.min_resume_tokens:
                return False
            ids, self._ids = self._ids, []
        if not self._last_given and (ids or complete):
            if complete:
                ids = [*ids, engine.runtime.config.tts_eos_id]
            player.add_text(self._embed(engine, ids), complete)
            self._last_given, self._rows = complete, self._rows + len(ids)
        return True

    @staticmethod
    def _embed(engine: Engine, ids: list[int]) -> Tensor:
        talker = engine.runtime.talker
        with exact_arithmetic(engine.runtime.device):
            return talker.embed_text(torch.tensor(ids, dtype=torch.int64))
