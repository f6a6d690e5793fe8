"""The streaming half of TTS: audio out, text in, long texts."""

import dataclasses
import numbers
from abc import ABC, abstractmethod

from qwen3tts.errors import OptionError
from qwen3tts.options import GenerateOptions, Options, StreamOptions, TextStreamOptions, checked
from qwen3tts.runtime.async_streams import AsyncSpeechStream, AsyncTextStream
from qwen3tts.runtime.engine import Engine, RowSpec
from qwen3tts.runtime.generation import Progress
from qwen3tts.runtime.long_speech import LongSpeech, join
from qwen3tts.runtime.streams import SpeechStream
from qwen3tts.runtime.text_stream import TextStream
from qwen3tts.runtime.turns import Turns
from qwen3tts.text.prompt import TextMode
from qwen3tts.text.sentences import split_text
from qwen3tts.text.tokenizer import clean_text
from qwen3tts.voice.voice import Voice

VoiceLike = str | Voice | None
"""a preset's name or a Voice; None for voice design"""


class Streaming(ABC):
    """What TTS offers besides generate(). TTS has the parts that it names."""

    turns: Turns

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """What speaks."""

    @property
    @abstractmethod
    def sample_rate(self) -> int:
        """Of the speech, in Hz."""

    @abstractmethod
    def _spec(
        self,
        text: str,
        voice: VoiceLike,
        language: str | None,
        instruct: str | None,
        options: GenerateOptions | None,
        *,
        batch: int,
        default_mode: TextMode | None = None,
    ) -> RowSpec: ...

    def stream(
        self,
        text: str,
        voice: VoiceLike = None,
        language: str | None = "auto",
        instruct: str | None = None,
        options: GenerateOptions | None = None,
        *,
        stream_options: StreamOptions | None = None,
    ) -> SpeechStream:
        """Speaks one text while it is made: iterate the result for AudioChunks. The joined chunks equal generate()'s
        audio with the same options and text_mode="streamed", which is the default here.

        A stream holds one of the model's max_streams until it ends, is closed or is collected. Raises as generate;
        codec_chunking="official" is refused, because streams decode exactly."""
        given, cutting = _checked(options, stream_options, StreamOptions)
        spec = self._spec(text, voice, language, instruct, given, batch=1, default_mode="streamed")
        return SpeechStream(self, spec, cutting)

    def generate_long(
        self,
        text: str,
        voice: VoiceLike = None,
        language: str | None = "auto",
        instruct: str | None = None,
        options: GenerateOptions | None = None,
        *,
        max_tokens: int = 150,
        progress: Progress | None = None,
    ) -> LongSpeech:
        """Speaks a text of any length in parts of at most max_tokens tokens (150 are about 40 seconds), split at
        sentences, with one voice and one seed; joins them with short fades and reports parts that hit their limit.

        Parts run side by side, up to max_streams of them. Raises as generate, before the first part is spoken."""
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, numbers.Integral) or max_tokens < 8:
            raise OptionError(f"max_tokens is {max_tokens!r:.60}; expected a whole number from 8 up.")
        encode = self.engine.template.tokenizer.encode
        texts = split_text(clean_text(text), lambda piece: len(encode(piece)), max_tokens)
        if len(texts) > 1 and options is not None and options.rng == "torch":
            raise OptionError(
                f"The text has {len(texts)} parts, and rng='torch' cannot draw for several: use rng='philox', or a "
                "larger max_tokens that leaves the text in one part."
            )
        first = self._spec(texts[0], voice, language, instruct, options, batch=len(texts))
        specs = [dataclasses.replace(first, text=clean_text(part), part=i) for i, part in enumerate(texts)]
        with self.turns:
            parts = self.engine.speak(specs, progress=progress)
        samples = join([part.samples for part in parts], self.sample_rate)
        return LongSpeech(tuple(texts), tuple(parts), samples, self.sample_rate)

    def astream(
        self,
        text: str,
        voice: VoiceLike = None,
        language: str | None = "auto",
        instruct: str | None = None,
        options: GenerateOptions | None = None,
        *,
        stream_options: StreamOptions | None = None,
    ) -> AsyncSpeechStream:
        """stream() for asyncio: `async for chunk in tts.astream(...)`. A wrong request raises here already."""
        given, cutting = _checked(options, stream_options, StreamOptions)
        spec = self._spec(text, voice, language, instruct, given, batch=1, default_mode="streamed")
        return AsyncSpeechStream(lambda: SpeechStream(self, spec, cutting), spec.seed)

    def aopen_text_stream(
        self,
        voice: VoiceLike = None,
        language: str | None = "auto",
        instruct: str | None = None,
        options: GenerateOptions | None = None,
        *,
        stream_options: TextStreamOptions | None = None,
    ) -> AsyncTextStream:
        """open_text_stream() for asyncio; call it inside a running event loop."""
        return AsyncTextStream(self.open_text_stream(voice, language, instruct, options, stream_options=stream_options))

    def open_text_stream(
        self,
        voice: VoiceLike = None,
        language: str | None = "auto",
        instruct: str | None = None,
        options: GenerateOptions | None = None,
        *,
        stream_options: TextStreamOptions | None = None,
    ) -> TextStream:
        """Speaks a text that arrives in pieces: push_text, finish, and take the audio by iterating or with poll().

        The codes equal those of the whole text with text_mode="streamed" and text_lookahead_tokens=stream.lookahead,
        however it was cut. It takes one of the model's max_streams when the speech starts, not before. Raises as
        generate; a text_mode of "whole", text_lookahead_tokens and codec_chunking="official" are refused."""
        given, settings = _checked(options, stream_options, TextStreamOptions)
        if given.text_mode == "whole" or given.text_lookahead_tokens is not None:
            raise OptionError(
                "A text stream is streamed text whose lookahead is stream_options.min_start_tokens: leave text_mode "
                "and text_lookahead_tokens out."
            )
        spec = self._spec("(to come)", voice, language, instruct, given, batch=1, default_mode="streamed")
        return TextStream(self, spec, settings)


def _checked(
    options: GenerateOptions | None, stream_options: Options | None, kind: type[Options]
) -> tuple[GenerateOptions, Options]:
    """Both with their defaults. Raises OptionError for wrong classes, and for what no stream can do."""
    given = checked("options", options, GenerateOptions)
    if given.codec_chunking == "official":
        raise OptionError(
            "codec_chunking='official' cuts the whole speech into chunks of 300 frames and is for generate(): a stream "
            "decodes exactly, each frame once. Leave it out."
        )
    return given, checked("stream_options", stream_options, kind)
