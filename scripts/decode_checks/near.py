"""How far a pick is from being another one, in logits: what decides whether two sums in different orders may part.

A pick turns into another one
  * greedy, or in the order of candidates: when two logits change places. The distance is the gap between them. In a
    draw this is the picked candidate and its neighbour above or below, the first one past the top k included;
  * when the boundary between two candidates passes the draw: the distance is how far all logits on one side of it would
    have to move against the others, |log-odds(boundary) - log-odds(draw)| * temperature;
  * when the prefix of top_p gains or loses its last candidate and the draw, a share of what is kept, falls to another
    one. The distance is that of the prefix's end from top_p, in the same way."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from qwen3tts.model.sampling import ONE, SHIFT, SamplingParams, exp_weights, rank


@dataclass(frozen=True)
class Near:
    """Another code that a pick could have been."""

    code: int
    distance: float
    """logits"""
    kind: str
    """"gap", "boundary" or "top_p" """


def near_picks(logits: Tensor, params: SamplingParams, word: int, picked: int) -> list[Near]:
    """The codes that a pick from processed fp32 logits [V] is next to, on the host, nearest first.

    word: the random word of the draw."""
    if not params.do_sample:
        values, codes = rank(logits, 2)
        other = int(codes[1]) if int(codes[0]) == picked else int(codes[0])
        return [Near(other, float((values[0] - values[1]).abs()), "gap")]
    found = sorted(_of_a_draw(logits, params, word, picked), key=lambda near: near.distance)
    return [near for i, near in enumerate(found) if near.code not in [other.code for other in found[:i]]]


def _of_a_draw(logits: Tensor, params: SamplingParams, word: int, picked: int) -> Iterator[Near]:
    temperature = params.temperature
    values, codes = rank(logits / torch.tensor(temperature), 0)
    place = int((codes == picked).nonzero())
    kept = values[: params.top_k or None]
    cumulative = exp_weights(kept - kept[0]).cumsum(0)
    length = _prefix(cumulative, params.top_p)
    if _draw(cumulative, length, word) != place:
        raise ValueError(f"code {picked} was not drawn from these logits")
    for other in (place - 1, place + 1):
        if 0 <= other < len(values) and torch.isfinite(values[other]):
            yield Near(int(codes[other]), float((values[place] - values[other]).abs()) * temperature, "gap")
    yield from (
        Near(int(codes[other]), distance * temperature, kind)
        for other, distance, kind in _of_shares(cumulative, length, params.top_p, word)
        if other != place
    )


def _of_shares(cumulative: Tensor, length: int, top_p: float, word: int) -> Iterator[tuple[int, float, str]]:
    """(place, distance, kind) of what is drawn if the prefix of top_p or a boundary moves a little."""
    draw = (word >> (32 - SHIFT)) / ONE
    for kept in (length,) if top_p >= 1.0 else (length, length - 1, length + 1):
        if not 1 <= kept <= len(cumulative):
            continue
        edge = 0.0
        if kept != length:
            edge = _log_odds_apart(float(cumulative[min(length, kept) - 1]) / float(cumulative[-1]), top_p)
        drawn, total = _draw(cumulative, kept, word), float(cumulative[kept - 1])
        yield drawn, edge, "top_p"
        for other, boundary in ((drawn - 1, drawn - 1), (drawn + 1, drawn)):
            if 0 <= other < kept:
                yield other, max(edge, _log_odds_apart(float(cumulative[boundary]) / total, draw)), "boundary"


def _prefix(cumulative: Tensor, top_p: float) -> int:
    """How many candidates top_p keeps."""
    if top_p >= 1.0:
        return len(cumulative)
    enough = cumulative * ONE >= round(top_p * ONE) * cumulative[-1]
    return int(enough.to(torch.int8).argmax()) + 1


def _draw(cumulative: Tensor, length: int, word: int) -> int:
    """The place that a word draws from the first candidates."""
    threshold = ((word >> (32 - SHIFT)) * int(cumulative[length - 1])) >> SHIFT
    return int((cumulative > threshold).to(torch.int8).argmax())


def _log_odds_apart(a: float, b: float) -> float:
    """|log-odds(a) - log-odds(b)| of two shares; infinite next to nothing and all."""
    if not (0.0 < a < 1.0 and 0.0 < b < 1.0):
        return math.inf
    return abs(math.log(a / (1 - a)) - math.log(b / (1 - b)))
