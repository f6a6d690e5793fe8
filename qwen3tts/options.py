"""What a caller can choose: GenerateOptions for a request, RuntimeOptions for a loaded model."""

import dataclasses
import functools
import numbers
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from qwen3tts.errors import OptionError, nearest
from qwen3tts.model.philox import MAX_SEED

DEFAULT_LOOKAHEAD = 8
DEFAULT_STREAMS = 16
MAX_FACTOR = 1e4
"""bound of temperatures and penalties, and of their inverses: beyond it fp32 logits lose their order"""
MIN_TOP_P = 1e-6


def _fail(name: str, value: object, expected: str) -> typing.NoReturn:
    raise OptionError(f"{name} is {value!r}; expected {expected}.")


def _whole(name: str, value: object, low: int, high: int | None = None) -> None:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):  # type: ignore[operator]
        _fail(name, value, f"a whole number from {low}" + (f" to {high}" if high is not None else " up"))


def _number(name: str, value: object, low: float, high: float) -> None:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not low <= value <= high:  # type: ignore[operator]
        _fail(name, value, f"a number from {low:g} to {high:g}")


def _choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        _fail(name, value, "one of " + ", ".join(map(repr, choices)))


Options = typing.TypeVar("Options")


def checked(name: str, value: Options | None, kind: type[Options]) -> Options:
    """The options given under `name`, or the defaults for None. Raises OptionError if they are of another class."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise OptionError(f"{name} is of type {type(value).__name__}; expected {kind.__name__}(...).")
    return value


def reject_unknown(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raises OptionError for the first name of `given` that is not in `known`."""
    known = list(known)
    for name in given:
        if name not in known:
            raise OptionError(f"{what} {name!r} does not exist.{nearest(name, known)} There are: {', '.join(known)}.")


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """How to speak one text. Only options that are passed override the checkpoint's generation_config.json.

    Raises OptionError for an unknown name or a value out of range. Change a copy with `replace`; dataclasses.replace
    would mark every option as passed."""

    do_sample: bool = True
    """False: greedy talker"""
    top_k: int = 50
    """keep exactly the k best tokens; 0 = all"""
    top_p: float = 1.0
    temperature: float = 0.9
    repetition_penalty: float = 1.05
    """on tokens of codebook 0 generated so far; 1.0 = off"""
    subtalker_dosample: bool = True
    """False: greedy code predictor"""
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0
    subtalker_temperature: float = 0.9
    seed: int | None = 0
    """0 <= seed < 2^64; None draws one, which Speech.seed reports"""
    max_frames: int | None = None
    """80 ms each; used as given. None: the checkpoint's limit or a generous budget for the text (docs/length.md)"""
    text_mode: Literal["whole", "streamed"] | None = None
    """whole: all of the text before the first frame; streamed: a token per frame. None: whole, for clones streamed"""
    text_lookahead_tokens: int | None = None
    """streamed text only: tokens before the first frame; None = 8; 1 is what the official package does"""
    rng: Literal["philox", "torch"] = "philox"
    """torch: the official package's draws from a torch generator, one text at a time"""
    codec_chunking: Literal["exact", "official"] = "exact"
    """official: 300-frame chunks with 25 frames of context, an approximation past 300 frames; not for streams"""

    def __post_init__(self) -> None:
        for name in ("do_sample", "subtalker_dosample"):
            if not isinstance(getattr(self, name), bool):
                _fail(name, getattr(self, name), "True or False")
        for name in ("top_k", "subtalker_top_k"):
            _whole(name, getattr(self, name), 0)
        for name in ("top_p", "subtalker_top_p"):
            _number(name, getattr(self, name), MIN_TOP_P, 1.0)
        for name in ("temperature", "subtalker_temperature", "repetition_penalty"):
            _number(name, getattr(self, name), 1 / MAX_FACTOR, MAX_FACTOR)
        if self.seed is not None:
            _whole("seed", self.seed, 0, MAX_SEED)
        if self.max_frames is not None:
            _whole("max_frames", self.max_frames, 1)
        if self.text_mode is not None:
            _choice("text_mode", self.text_mode, ("whole", "streamed"))
        if self.text_lookahead_tokens is not None:
            _whole("text_lookahead_tokens", self.text_lookahead_tokens, 1)
            if self.text_mode == "whole":
                raise OptionError("text_lookahead_tokens needs text_mode='streamed'; whole text has no lookahead.")
        _choice("rng", self.rng, ("philox", "torch"))
        _choice("codec_chunking", self.codec_chunking, ("exact", "official"))

    @property
    def passed(self) -> frozenset[str]:
        """Names of the options that were passed and so win over the checkpoint's."""
        return typing.cast(frozenset[str], self.__dict__.get("_passed", frozenset()))

    def replace(self, **changes: Any) -> Self:
        """A copy with some options passed anew; the others keep their values, passed or not."""
        reject_unknown(changes, OPTION_NAMES, "The option")
        return type(self)(**({name: getattr(self, name) for name in self.passed} | changes))

    def over(self, checkpoint: Mapping[str, Any]) -> Self:
        """These options on the checkpoint's values: what is passed wins, then the checkpoint, then the default."""
        values = {name: value for name, value in checkpoint.items() if name in OPTION_NAMES}
        values |= {name: getattr(self, name) for name in self.passed}
        return type(self)(**values)


OPTION_NAMES = tuple(field.name for field in dataclasses.fields(GenerateOptions))
_generated_init = GenerateOptions.__init__


@functools.wraps(_generated_init)
def _recording_init(self: GenerateOptions, **passed: Any) -> None:
    reject_unknown(passed, OPTION_NAMES, "The option")
    object.__setattr__(self, "_passed", frozenset(passed))
    _generated_init(self, **passed)


GenerateOptions.__init__ = _recording_init  # type: ignore[method-assign]


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """Limits of a loaded model. Raises OptionError for a value out of range."""

    max_streams: int | None = None
    """rows decoded side by side; more texts wait for a place. None: what the profile says, else 16"""
    max_positions: int | None = None
    """prompt rows + frames of one text; None = what the model was made for"""
    kv_bytes: int | None = None
    """memory for keys and values of all rows together; None = no limit of its own"""
    text_table: Literal["host", "device"] = "host"
    """where a GPU's table of text tokens lies, 0.62 GB of which a text needs a few rows: in page-locked host memory, or
    on the device"""

    def __post_init__(self) -> None:
        if self.max_streams is not None:
            _whole("max_streams", self.max_streams, 1)
        if self.max_positions is not None:
            _whole("max_positions", self.max_positions, 16)
        if self.kv_bytes is not None:
            _whole("kv_bytes", self.kv_bytes, 1)
        _choice("text_table", self.text_table, ("host", "device"))


    def with_streams(self, streams: int | None) -> "RuntimeOptions":
        """The same with so many streams (None: 16) where max_streams is not given."""
        if self.max_streams is not None:
            return self
        return dataclasses.replace(self, max_streams=DEFAULT_STREAMS if streams is None else streams)


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """How audio is cut while it is made. Raises OptionError for a value out of range."""

    chunk_frames: tuple[int, ...] = (1, 2, 4, 8, 12)
    """frames of the first chunk, the second, ...; the last size repeats. (1,) gives every frame alone"""
    left_context_frames: int | None = None
    """None: exact. A number: decode each chunk anew after that many frames of context, as runtimes without a codec
    state do; for comparison, the result differs"""

    def __post_init__(self) -> None:
        sizes = self.chunk_frames
        if not isinstance(sizes, tuple) or not sizes:
            _fail("chunk_frames", sizes, "a tuple with at least one size, for instance (1, 2, 4, 8, 12)")
        for i, size in enumerate(sizes):
            _whole(f"chunk_frames[{i}]", size, 1)
        if self.left_context_frames is not None:
            _whole("left_context_frames", self.left_context_frames, 0)


@dataclass(frozen=True, kw_only=True)
class TextStreamOptions(StreamOptions):
    """How text that arrives in pieces starts and resumes speech. Raises OptionError for a value out of range."""

    min_start_tokens: int = 8
    """settled tokens before the first frame; the lookahead of the text"""
    min_resume_tokens: int = 1
    """new settled tokens before a row goes on that had run out of text"""
    flush_on_punctuation: bool = True
    """start with fewer tokens when the text so far ends a clause; TextStream.lookahead tells how many it was"""
    settle: Literal["safe", "eager"] = "safe"
    """eager: do not wait for words to be complete; the codes then depend on how the text was cut"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _whole("min_start_tokens", self.min_start_tokens, 1)
        _whole("min_resume_tokens", self.min_resume_tokens, 1)
        if not isinstance(self.flush_on_punctuation, bool):
            _fail("flush_on_punctuation", self.flush_on_punctuation, "True or False")
        _choice("settle", self.settle, ("safe", "eager"))
