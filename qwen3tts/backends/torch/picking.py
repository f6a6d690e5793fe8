"""Rows of a frame decoder, and who picks their codes: the one part of a step that is each row's own and replaceable."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from qwen3tts.errors import NumericsError
from qwen3tts.model.kv_cache import RowCache
from qwen3tts.model.philox import random_words
from qwen3tts.model.sampling import (
    SamplingParams,
    pick_greedy,
    pick_philox,
    pick_torch,
    process_talker_logits,
    suppressed_tokens,
)
from qwen3tts.model.talker import Talker
from qwen3tts.runtime.protocols import FinishReason, RowRequest

WORD_BLOCK = 64
MIN_TOKENS = 2
"""the official package never ends before two tokens"""


class Row:
    """One request while it runs: everything that changes belongs to it."""

    def __init__(self, request: RowRequest, talker: Talker, capacity: int) -> None:
        config, device = talker.config, talker.device
        self.request, self.device, self.groups = request, device, config.num_code_groups
        self.cache = RowCache(config.transformer, capacity, device, talker.dtype)
        self.seen = torch.zeros(config.vocab_size, dtype=torch.bool, device=device)
        """code-0 tokens so far; a picker may move it"""
        self.hidden = torch.empty(config.transformer.hidden_size, device=device, dtype=talker.dtype)
        self.token = torch.zeros((), dtype=torch.int64, device=device)
        self.frames = 0
        self.trailing, self.text_complete = request.trailing, request.text_complete
        self.finished: FinishReason | None = None
        self.first_word = -WORD_BLOCK
        self.words = torch.empty(0, dtype=torch.int64)

    @property
    def can_advance(self) -> bool:
        """Not finished, and the next frame's text row is there."""
        return self.finished is None and (self.text_complete or self.frames < self.trailing.shape[0])

    def word(self, codebook: int) -> Tensor:
        """The random word of (this frame, codebook)."""
        if self.frames >= self.first_word + WORD_BLOCK:
            self.first_word = self.frames
            table = random_words(self.request.seed, self.frames, WORD_BLOCK, self.groups, self.request.part)
            self.words = torch.from_numpy(table).to(self.device)
        return self.words[self.frames - self.first_word, codebook]

    def pick(self, logits: Tensor, params: SamplingParams, codebook: int) -> Tensor:
        """Draws one code from processed fp32 logits [V]."""
        if not params.do_sample:
            return pick_greedy(logits)
        if self.request.generator is not None:
            return pick_torch(logits, params, self.request.generator)
        return pick_philox(logits, params, self.word(codebook))


class Picker(Protocol):
    """Picks the codes of all rows of a step. Every picker picks the same codes as RowPicker."""

    def begin(self, rows: Sequence[Row]) -> None:
        """Prepares for a step of these rows; forgets what an earlier step that failed has left."""
        ...

    def predictor(self, rows: Sequence[Row], codebook: int, logits: Tensor) -> Tensor:
        """fp32 [rows, V] -> codes int64 [rows] of one of the code predictor's codebooks, for each row's frame."""
        ...

    def talker(self, rows: Sequence[Row], logits: Tensor) -> Tensor:
        """fp32 [rows, V] -> code 0, int64 [rows], of each row's frame; it is marked in the row's `seen`.

        Raises NumericsError if these logits, or the predictor's since `begin`, are not finite."""
        ...


class RowPicker:
    """The definition, row by row in plain torch."""

    def __init__(self, talker: Talker) -> None:
        config = talker.config
        self._dtype, self._eos_id = talker.dtype, config.codec_eos_id
        self._suppressed = suppressed_tokens(config.vocab_size, config.codec_eos_id, talker.device)
        self._probes: list[Tensor] = []
        """scalars that are finite if the logits were"""

    def begin(self, rows: Sequence[Row]) -> None:
        """See Picker."""
        self._probes = []

    def predictor(self, rows: Sequence[Row], codebook: int, logits: Tensor) -> Tensor:
        """See Picker."""
        self._probes.append(logits.sum())
        return torch.stack([row.pick(logits[i], row.request.predictor, codebook) for i, row in enumerate(rows)])

    def talker(self, rows: Sequence[Row], logits: Tensor) -> Tensor:
        """See Picker."""
        if not torch.isfinite(torch.stack([*self._probes, logits.sum()])).all():
            raise not_finite(self._dtype)
        tokens = []
        for i, row in enumerate(rows):
            request, too_early = row.request, self._eos_id if row.frames < MIN_TOKENS else None
            scores = process_talker_logits(logits[i], row.seen, request.repetition_penalty, self._suppressed, too_early)
            tokens.append(row.pick(scores, request.talker, 0))
            row.seen[tokens[-1]] = True
        return torch.stack(tokens)


def not_finite(dtype: torch.dtype) -> NumericsError:
    """The error for logits that are NaN or infinite."""
    return NumericsError(
        f"The model's logits are not finite. The weights may be damaged, or values overflow in {dtype}; try "
        "dtype='float32'."
    )
