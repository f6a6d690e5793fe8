"""Picks one token per row of logits, as model/sampling.py defines it; kernel: csrc/common/sampler.cpp."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from qwen3tts.backends.native.cases import Call, Case, different_elements
from qwen3tts.backends.native.checks import (
    FP32_MAX,
    FP32_MIN,
    INT32_MAX,
    check,
    check_apart,
    flag,
    instance,
    length,
    number,
    row_stride,
    whole,
)
from qwen3tts.backends.native.module import Native
from qwen3tts.errors import KernelArgumentError
from qwen3tts.model.philox import MAX_SEED, random_words
from qwen3tts.model.sampling import ONE, SamplingParams, pick_greedy, pick_philox, process_talker_logits
from qwen3tts.model.sampling import exp_weights as defined_weights

NOT_FINITE = 1
"""bit of a row's status: a logit was NaN or infinite before anything was done to it"""
NO_PICK = 2
"""bit of a row's status: a NaN, or nothing finite to draw from; the pick is 0 and not marked as seen"""

_RECORD = np.dtype(
    [
        ("seed", np.uint64),
        ("temperature", np.float32),
        ("repetition_penalty", np.float32),
        ("top_k", np.int32),
        ("top_p", np.int32),
        ("do_sample", np.int32),
        ("part", np.uint32),
        ("min_frames", np.int32),
        ("reserved", np.int32),
    ]
)
"""SamplerRow of csrc/common/sampler.h"""


@dataclass(frozen=True)
class SamplerRow:
    """How one row is sampled."""

    params: SamplingParams
    seed: int
    part: int = 0
    repetition_penalty: float = 1.0
    """of seen tokens; 1.0 = off"""
    min_frames: int = 0
    """the end token is too early in frames below this"""


def pack_rows(rows: Sequence[SamplerRow], device: torch.device) -> Tensor:
    """The rows as the kernel reads them: uint8 [rows, 40] on the device. Raises KernelArgumentError."""
    packed = np.zeros(length("rows", rows), _RECORD)
    for i, (record, row) in enumerate(zip(packed, rows, strict=True)):
        name = f"rows[{i}]"
        params = instance(f"{name}.params", instance(name, row, SamplerRow).params, SamplingParams)
        record["seed"] = whole(f"{name}.seed", row.seed, 0, MAX_SEED)
        record["part"] = whole(f"{name}.part", row.part, 0, 2**32 - 1)
        record["min_frames"] = whole(f"{name}.min_frames", row.min_frames, 0, INT32_MAX)
        record["temperature"] = number(f"{name}.params.temperature", params.temperature, FP32_MIN, FP32_MAX)
        record["repetition_penalty"] = number(f"{name}.repetition_penalty", row.repetition_penalty, FP32_MIN, FP32_MAX)
        record["top_k"] = min(whole(f"{name}.params.top_k", params.top_k, 0, 2**63 - 1), INT32_MAX)
        record["top_p"] = round(number(f"{name}.params.top_p", params.top_p, 0.0, 1.0) * ONE)
        record["do_sample"] = flag(f"{name}.params.do_sample", params.do_sample)
    return torch.from_numpy(packed.view(np.uint8).reshape(len(rows), _RECORD.itemsize)).to(device)


def sample_reference(
    logits: Tensor,
    rows: Sequence[SamplerRow],
    frames: Sequence[int],
    codebook: int,
    *,
    seen: Tensor | None = None,
    suppressed: Tensor | None = None,
    eos_id: int | None = None,
) -> Tensor:
    """What `sample` does, row by row with the functions of model/sampling.py."""
    vocab, picks = logits.shape[1], []
    nothing = torch.zeros(vocab, dtype=torch.bool, device=logits.device)
    for i, (row, frame) in enumerate(zip(rows, frames, strict=True)):
        scores = process_talker_logits(
            logits[i],
            nothing if seen is None else seen[i],
            row.repetition_penalty,
            nothing if suppressed is None else suppressed,
            eos_id if frame < row.min_frames else None,
        )
        if row.params.do_sample:
            word = random_words(row.seed, frame, 1, codebook + 1, row.part)[0, codebook]
            pick = pick_philox(scores, row.params, torch.tensor(int(word), device=logits.device))
        else:
            pick = pick_greedy(scores)
        if seen is not None:
            seen[i, pick] = True
        picks.append(pick)
    return torch.stack(picks) if picks else torch.empty(0, dtype=torch.int64, device=logits.device)


def sample(
    native: Native,
    logits: Tensor,
    rows: Tensor,
    frames: Tensor,
    codebook: int,
    *,
    seen: Tensor | None = None,
    suppressed: Tensor | None = None,
    eos_id: int | None = None,
    status: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """fp32 logits [B, V] (rows at equal distances), V at most 8192 -> picks int64 [B]. Waits for nothing.

    rows: uint8 [B, 40] from `pack_rows`. frames: int32 [B], the frame that each pick belongs to. seen: bool [B, V],
    penalised, and the pick is marked in it. suppressed: bool [V], never picked. eos_id: the token that is too early in
    a row's first frames. status: int32 [B], into which NOT_FINITE and NO_PICK are ORed. out: where to write the picks.
    seen, status and out are written: apart from one another and from the rest. Raises KernelArgumentError.

    The same picks as `sample_reference`, bit for bit; a row whose status gets NO_PICK has no defined pick there."""
    check("logits", logits, native=native, dtype=torch.float32, shape=(None, None), contiguous=False)
    count, vocab = logits.shape
    limit = native.module.sampler_max_vocab
    if not 1 <= vocab <= limit:
        raise KernelArgumentError(f"logits has rows of {vocab}, expected 1 to {limit}.")
    if eos_id is not None:
        eos_id = whole("eos_id", eos_id, 0, vocab - 1)
    codebook = whole("codebook", codebook, 0, INT32_MAX)
    check("rows", rows, native=native, dtype=torch.uint8, shape=(count, _RECORD.itemsize))
    check("frames", frames, native=native, dtype=torch.int32, shape=(count,))
    if seen is not None:
        check("seen", seen, native=native, dtype=torch.bool, shape=(count, vocab))
    if suppressed is not None:
        check("suppressed", suppressed, native=native, dtype=torch.bool, shape=(vocab,))
    if status is not None:
        check("status", status, native=native, dtype=torch.int32, shape=(count,))
    picks = torch.empty(count, dtype=torch.int64, device=logits.device) if out is None else out
    if out is not None:
        check("out", out, native=native, dtype=torch.int64, shape=(count,))
    check_apart(
        {"seen": seen, "status": status, "out": out},
        {"logits": logits, "rows": rows, "frames": frames, "suppressed": suppressed},
    )
    stride = row_stride("logits", logits)
    try:
        native.module.sample(
            logits.data_ptr(), stride, count, vocab, rows.data_ptr(), frames.data_ptr(), codebook, _pointer(seen),
            _pointer(suppressed), -1 if eos_id is None else eos_id, picks.data_ptr(), _pointer(status), native.stream(),
        )  # fmt: skip
    except ValueError as error:  # std::invalid_argument
        raise KernelArgumentError(f"{error}.") from error
    return picks


def exp_weights(native: Native, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """sampling.exp_weights of fp32 x <= 0 -> int64, shaped as x. out: where to write them.

    Raises KernelArgumentError."""
    check("x", x, native=native, dtype=torch.float32)
    weights = torch.empty(x.shape, dtype=torch.int64, device=x.device) if out is None else out
    if out is not None:
        check("out", out, native=native, dtype=torch.int64, shape=x.shape)
        check_apart({"out": out}, {"x": x})
    native.module.sampler_weights(x.data_ptr(), weights.data_ptr(), x.numel(), native.stream())
    return weights


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def selftest_cases() -> list[Case]:
    """Picks of both models' vocabularies in all the ways that the kernel goes, and weights."""
    cases = []
    for name, params in (
        ("top-k 50", SamplingParams(True, 0.9, 50, 1.0)),
        ("top-k 50, top-p 0.9", SamplingParams(True, 0.9, 50, 0.9)),
        ("top-k 256", SamplingParams(True, 0.9, 256, 1.0)),
        ("no top-k", SamplingParams(True, 0.9, 0, 1.0)),
        ("no top-k, top-p 0.9", SamplingParams(True, 0.9, 0, 0.9)),
        ("greedy", SamplingParams(False, 0.9, 50, 1.0)),
    ):
        for count, vocab, talker in ((1, 2048, False), (1, 3072, True), (8, 2048, False), (32, 2048, False)):
            variant = f"{count} x {vocab}, {name}{', masks' if talker else ''}"
            prepare = partial(_prepare_case, params, count, vocab, talker)
            cases.append(_case("sampler", variant, prepare, small=count == 1))
    prepare = partial(_prepare_case, SamplingParams(True, 1.0, 0, 1.0), 1, 8192, False)
    cases.append(_case("sampler", "1 x 8192, no top-k", prepare, small=True))
    cases.append(_case("sampler weights", "1000000", _prepare_weights, small=True))
    return cases


def _case(kernel: str, variant: str, prepare: Callable[[Native, torch.Generator], Call], small: bool) -> Case:
    return Case(kernel, variant, "float32", prepare, different_elements, "different", 0.0, small)


def _prepare_case(
    params: SamplingParams, count: int, vocab: int, talker: bool, native: Native, generator: torch.Generator
) -> Call:
    device, masks, initial = native.device, {}, {}
    logits = torch.randn(count, vocab, generator=generator) * 3
    seeds = torch.randint(2**62, (count,), generator=generator).tolist()
    rows = [SamplerRow(params, seed, repetition_penalty=1.05 if talker else 1.0, min_frames=2) for seed in seeds]
    frames = torch.randint(4, (count,), generator=generator, dtype=torch.int32)
    if talker:
        suppressed = torch.arange(vocab) >= vocab - 1024
        initial = {"seen": torch.rand(count, vocab, generator=generator) < 0.1, "suppressed": suppressed}
        masks = {name: mask.to(device, copy=True) for name, mask in initial.items()}
    on_device, packed, numbers = logits.to(device), pack_rows(rows, device), frames.to(device)
    out = torch.empty(count, dtype=torch.int64, device=device)
    codebook, eos_id = (0, 5) if talker else (3, None)

    def reference() -> list[Tensor]:
        marked = {name: mask.clone() for name, mask in initial.items()}
        picks = sample_reference(logits, rows, frames.tolist(), codebook, eos_id=eos_id, **marked)
        return [picks.to(device), *(mask.to(device) for mask in marked.values())]

    return Call(
        run=lambda: sample(native, on_device, packed, numbers, codebook, eos_id=eos_id, out=out, **masks),
        outputs=lambda: [out, *masks.values()],
        reference=reference,
        bytes_moved=count * vocab * (5 if talker else 4) + (vocab if talker else 0),
    )


def _prepare_weights(native: Native, generator: torch.Generator) -> Call:
    x = (-18 * torch.rand(1_000_000, generator=generator)).to(native.device)
    weights = torch.empty(x.shape, dtype=torch.int64, device=native.device)
    return Call(
        run=lambda: exp_weights(native, x, out=weights),
        outputs=lambda: [weights],
        reference=lambda: [defined_weights(x)],
        bytes_moved=x.numel() * 12,
    )
