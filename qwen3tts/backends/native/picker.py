"""A Picker for the torch frame decoder that picks for all rows of a step with one kernel."""

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from qwen3tts.backends.native.module import Native
from qwen3tts.backends.native.sampler import SamplerRow, pack_rows, sample
from qwen3tts.backends.torch.picking import MIN_TOKENS, Row, RowPicker, not_finite
from qwen3tts.errors import KernelArgumentError
from qwen3tts.model.sampling import suppressed_tokens
from qwen3tts.model.talker import Talker


class NativePicker:
    """See backends.torch.picking.Picker; the same codes as RowPicker.

    What the kernel needs of the rows stays on the device while a step has the same rows as the one before. Steps with a
    row that draws from a torch generator are picked by RowPicker."""

    def __init__(self, native: Native, talker: Talker) -> None:
        """Raises KernelArgumentError if the talker is elsewhere or its vocabularies are too large."""
        config, device = talker.config, talker.device
        limit = native.module.sampler_max_vocab
        largest = max(config.vocab_size, config.code_predictor.vocab_size)
        if largest > limit:
            raise KernelArgumentError(f"The model has a vocabulary of {largest}, the sampler takes up to {limit}.")
        if device != native.device:
            raise KernelArgumentError(f"The model is on {device}, the kernels run on {native.device}.")
        self._native, self._dtype, self._eos_id = native, talker.dtype, config.codec_eos_id
        self._suppressed = suppressed_tokens(config.vocab_size, config.codec_eos_id, device)
        self._plain = RowPicker(talker)
        self._use_plain = False
        self._rows: tuple[weakref.ref[Row], ...] = ()  # weak: a row that is released must not live on here

    def begin(self, rows: Sequence[Row]) -> None:
        """See Picker."""
        self._use_plain = any(row.request.generator is not None for row in rows)
        if self._use_plain:
            self._plain.begin(rows)
            return
        if len(rows) != len(self._rows) or any(ref() is not row for ref, row in zip(self._rows, rows, strict=True)):
            self._adopt(rows)
        self._follow(rows)
        self._status.zero_()

    def predictor(self, rows: Sequence[Row], codebook: int, logits: Tensor) -> Tensor:
        """See Picker."""
        if self._use_plain:
            return self._plain.predictor(rows, codebook, logits)
        return sample(self._native, logits, self._predictor, self._frames, codebook, status=self._status)

    def talker(self, rows: Sequence[Row], logits: Tensor) -> Tensor:
        """See Picker."""
        if self._use_plain:
            return self._plain.talker(rows, logits)
        self._follow(rows)
        tokens = sample(
            self._native, logits, self._talker, self._frames, 0, seen=self._seen, suppressed=self._suppressed,
            eos_id=self._eos_id, status=self._status,
        )  # fmt: skip
        if self._status.any():
            raise not_finite(self._dtype)
        return tokens

    def _adopt(self, rows: Sequence[Row]) -> None:
        """Puts what does not change, and the rows' masks, where the kernel reads them."""
        device = self._native.device
        requests = [row.request for row in rows]
        self._talker = pack_rows(
            [SamplerRow(r.talker, r.seed, r.part, r.repetition_penalty, MIN_TOKENS) for r in requests], device
        )
        self._predictor = pack_rows([SamplerRow(r.predictor, r.seed, r.part) for r in requests], device)
        self._seen = torch.stack([row.seen for row in rows])
        for row, seen in zip(rows, self._seen, strict=True):
            row.seen = seen
        self._counts = [row.frames for row in rows]
        self._frames = torch.tensor(self._counts, dtype=torch.int32, device=device)
        self._status = torch.zeros(len(rows), dtype=torch.int32, device=device)
        self._rows = tuple(weakref.ref(row) for row in rows)

    def _follow(self, rows: Sequence[Row]) -> None:
        """Brings the frame numbers on the device up to the rows'; one frame on is one addition there."""
        counts = [row.frames for row in rows]
        if counts == [count + 1 for count in self._counts]:
            self._frames.add_(1)
        elif counts != self._counts:
            self._frames.copy_(torch.tensor(counts, dtype=torch.int32))
        self._counts = counts
