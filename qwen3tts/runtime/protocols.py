"""The seam between the front end and the backends: everything fast implements these protocols."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NewType, Protocol

import torch
from torch import Tensor

from qwen3tts.model.config import ModelConfig
from qwen3tts.model.sampling import SamplingParams
from qwen3tts.model.talker import Talker

Slot = NewType("Slot", int)
FinishReason = Literal["eos", "length"]


@dataclass(frozen=True)
class RowRequest:
    """All that a row's result depends on."""

    prefill: Tensor
    """[T, hidden]: the prompt, one row per position"""
    trailing: Tensor
    """[S, hidden]: frame s adds row s, and the text padding row from S on"""
    talker: SamplingParams
    predictor: SamplingParams
    repetition_penalty: float
    seed: int
    part: int
    """third word of the random counter: 0 unless a text is spoken in parts"""
    max_frames: int
    generator: torch.Generator | None = None
    """draw from this as the official package does; None: counter-based draws from `seed`"""
    text_complete: bool = True
    """False: more rows follow through add_text, and the row makes no frame whose text row is not there"""


@dataclass(frozen=True)
class FrameBatch:
    """What `advance` made, one entry per active slot in order of admission."""

    slots: tuple[Slot, ...]
    codes: Tensor
    """int64 [slots, frames, 16] on the host; entries past a slot's count mean nothing"""
    counts: tuple[int, ...]
    finished: tuple[FinishReason | None, ...]
    """why a slot ended with these frames, None while it goes on"""


class FrameDecoder(Protocol):
    """Talker, code predictor and sampling for up to `slots` rows at once."""

    @property
    def frames_per_call(self) -> int:
        """How many frames to ask for at once where nobody waits for each of them."""
        ...

    def admit(self, rows: Sequence[RowRequest], wait: bool = True) -> list[Slot]:
        """Runs the prompts. Raises CapacityError, admitting none, if a row's whole life does not fit, and NumericsError
        if logits are not finite.

        wait False: may return before they have run, so that the device goes on to the first frames without waiting for
        the host; what is not finite is told by the first advance() of these rows then."""
        ...

    def advance(self, frames: int, slots: Sequence[Slot] | None = None) -> FrameBatch:
        """Up to `frames` more frames for each of the slots (None: all of them) that has not finished.

        A slot whose text has run out makes fewer: it pauses before the frame that lacks its text row, writes nothing
        meanwhile, and resumes there after add_text."""
        ...

    def add_text(self, slot: Slot, rows: Tensor, last: bool) -> None:
        """More trailing text rows [S, hidden] of a slot admitted with text_complete False; last: these are all."""
        ...

    def release(self, slot: Slot) -> None:
        """Frees a slot at once: at its end, on cancel or on error. A slot that is free already is left alone."""
        ...

    def close(self) -> None:
        """Frees the memory of all rows, whoever still holds the decoder; only release() works afterwards."""
        ...

    def free_slots(self) -> int:
        """How many slots are free."""
        ...

    def open_slots(self) -> frozenset[Slot]:
        """Slots that are not free."""
        ...

    def room_for(self, rows: Sequence[RowRequest]) -> int:
        """How many of these rows, from the first on, can be admitted now. Raises CapacityError if one never could."""
        ...


class CodecDecoder(Protocol):
    """Codes in, samples out, exact at any chunking."""

    def open(self) -> Any:
        """State of a new stream."""
        ...

    def fork(self, state: Any) -> Any:
        """State of another stream that goes on from where this one is; neither changes the other."""
        ...

    def decode(self, states: Sequence[Any], codes: Sequence[Tensor]) -> list[Tensor]:
        """codes int64 [frames_i, 16] per stream -> fp32 samples [frames_i * 1920] per stream, on the host."""
        ...

    def decode_official(self, codes: Tensor) -> Tensor:
        """The official package's chunking of a whole recording: int64 [frames, 16] -> fp32 samples on the host."""
        ...

    def close(self, state: Any) -> None:
        """Frees a stream's state."""
        ...


class Runtime(Protocol):
    """A loaded model on one backend: the parts that speak."""

    config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    talker: Talker
    """the plain model, whose tables embed prompts"""
    frames: FrameDecoder
    codec: CodecDecoder
    max_positions: int

    def reload_weights(self, names: Iterable[str] | None = None) -> None:
        """Reads parameters from the checkpoint again, into the same Parameter objects: bit-equal to the first time.

        names: keys of the state_dicts after "talker." or "codec."; None: all. Raises WeightsError."""
        ...

    def close(self) -> None:
        """Frees the weights."""
        ...
