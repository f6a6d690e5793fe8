"""Which code is picked from logits: one exact definition that kernels repeat bit for bit.

Talker logits (fp32) are processed in this order: repetition penalty, minimum length, suppression; then, as for the
code predictor's logits, temperature, top-k, top-p and the draw.

The draw ("philox")
  1. candidates by processed logit l descending, then index ascending; l_0 is the first. Temperature is an IEEE
     division.
  2. top-k keeps exactly the first k (0 = all).
  3. e_i = floor(2^24 * exp(l_i - l_0)) by `exp_weights`; S = sum of e_i in 64-bit integers, so its order is free.
  4. top-p keeps the shortest prefix with (cumulative sum * 2^24) >= round(p * 2^24) * S (round half to even); S is
     then taken over the prefix.
  5. t = ((w >> 8) * S) >> 24 for the 32-bit random word w; the first i with cumulative sum > t is picked.
Greedy picks the lowest index among equals.

`pick_torch` keeps the official package's tie rule and draws from a torch generator, for comparison with it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SHIFT = 24
ONE = 1 << SHIFT


@dataclass(frozen=True)
class SamplingParams:
    """How to pick from one kind of logits. Ranges are checked where options enter (qwen3tts.options)."""

    do_sample: bool
    temperature: float
    top_k: int
    """0 = off"""
    top_p: float
    """1.0 = off"""


def exp_weights(x: Tensor) -> Tensor:
    """floor(2^24 * exp(x)) for fp32 x <= 0, as int64; 0 below -17.

    Every operation is a separately rounded fp32 one; no contraction into fused multiply-adds, no hardware exp:
        n = floor(x * log2(e) + 0.5);  r = (x - n * C1) - n * C2   with C1 + C2 = ln 2, n * C1 exact
        p = ((((((c6 r + c5) r + c4) r + c3) r + c2) r + c1) r + c0 = exp(r) on [-0.35, 0.35]
        (p * 2^24) >> -n, where p * 2^24 is a whole number and n <= 0."""
    x = x.clamp(min=-17.0)
    n = torch.floor(x * 1.44269504088896341 + 0.5)
    r = x - n * 0.693359375
    r = r - n * -2.12194440054690583e-4
    p = torch.full_like(r, 1.0 / 720.0)
    for c in (1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0):
        p = p * r
        p = p + c
    whole = (p * float(ONE)).to(torch.int64)
    return torch.where(x <= -17.0, 0, whole >> (-n).to(torch.int64))


def rank(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The first k (all if 0) of fp32 [V] by value descending, then index ascending: values and int64 indices."""
    values, indices = torch.sort(logits, descending=True, stable=True)
    return (values[:top_k], indices[:top_k]) if top_k else (values, indices)


def pick_greedy(logits: Tensor) -> Tensor:
    """fp32 [V] -> int64 scalar: the lowest index of the largest value."""
    index = torch.arange(logits.shape[0], device=logits.device)
    return torch.where(logits == logits.max(), index, logits.shape[0]).min()


def pick_philox(logits: Tensor, params: SamplingParams, word: Tensor) -> Tensor:
    """fp32 [V], 32-bit random word (int64 scalar) -> int64 scalar, as defined at the top of this file."""
    values, indices = rank(logits / torch.tensor(params.temperature, device=logits.device), params.top_k)
    cumulative = exp_weights(values - values[0]).cumsum(0)
    total = cumulative[-1]
    if params.top_p < 1.0:
        enough = cumulative * ONE >= round(params.top_p * ONE) * total
        total = cumulative[enough.to(torch.int8).argmax()]
    threshold = ((word >> 8) * total) >> SHIFT
    return indices[(cumulative > threshold).to(torch.int8).argmax()]


def pick_torch(logits: Tensor, params: SamplingParams, generator: torch.Generator | None) -> Tensor:
    """fp32 [V] -> int64 scalar, as the official package: every tie at the k-th place stays, then torch.multinomial.

    generator None = torch's global one."""
    scores = logits / torch.tensor(params.temperature, device=logits.device)
    if params.top_k:
        edge = torch.topk(scores, min(params.top_k, scores.shape[0])).values[-1]
        scores = scores.masked_fill(scores < edge, -torch.inf)
    if params.top_p < 1.0:
        ascending, order = torch.sort(scores)
        tail = ascending.softmax(-1).cumsum(-1) <= 1.0 - params.top_p
        tail[-1] = False
        scores = scores.masked_fill(torch.zeros_like(tail).scatter(0, order, tail), -torch.inf)
    return torch.multinomial(scores.softmax(-1), 1, generator=generator)[0]


def process_talker_logits(
    logits: Tensor, seen: Tensor, repetition_penalty: float, suppressed: Tensor, eos_id: int | None
) -> Tensor:
    """Talker logits fp32 [V] before the draw.

    seen: bool [V], code-0 tokens generated so far in this request (the prompt does not count): a positive logit is
    divided by the penalty, a negative one multiplied, once. suppressed: bool [V], never picked. eos_id: the end token
    while it is too early for it, else None."""
    if repetition_penalty != 1.0:
        penalty = torch.tensor(repetition_penalty, device=logits.device)
        logits = torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)
    logits = logits.masked_fill(suppressed, -torch.inf)
    if eos_id is not None:
        logits[eos_id] = -torch.inf
    return logits


def suppressed_tokens(vocab_size: int, eos_id: int, device: torch.device) -> Tensor:
    """bool [V]: the last 1024 ids (languages, speakers, control) except the end of speech."""
    mask = torch.arange(vocab_size, device=device) >= vocab_size - 1024
    mask[eos_id] = False
    return mask
