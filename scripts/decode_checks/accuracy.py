"""How exact logits are: several implementations on the same codes, against one of more digits."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from decode_checks.forcing import KeptLogits
from decode_checks.near import Near, near_picks
from qwen3tts.backends.torch.picking import MIN_TOKENS
from qwen3tts.model.layers import Head, RMSNorm
from qwen3tts.model.philox import random_words
from qwen3tts.model.sampling import SamplingParams, pick_greedy, pick_philox, process_talker_logits, suppressed_tokens
from qwen3tts.model.talker import Talker
from qwen3tts.runtime.protocols import RowRequest


def _wide_norm(self: RMSNorm, x: Tensor) -> Tensor:
    return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


def _wide_head(self: Head, x: Tensor) -> Tensor:
    return F.linear(x, self.weight)


def in_float64(talker: Talker) -> Talker:
    """A copy of an fp32 talker that computes in float64, from the same weights and the same rotary tables in fp32."""
    wide = copy.deepcopy(talker).double()
    for module in wide.modules():
        if isinstance(module, RMSNorm):
            module.forward = MethodType(_wide_norm, module)  # type: ignore[method-assign]
        elif isinstance(module, Head):
            vars(module).pop("forward", None)  # of a head that is stored for kernels
            module.forward = MethodType(_wide_head, module)  # type: ignore[method-assign]
    with torch.inference_mode():
        wide.prepare(talker.rotary.cos.shape[0])
    return wide


def widened(rows: Sequence[RowRequest], dtype: torch.dtype) -> list[RowRequest]:
    """Rows with their prompts and texts in another dtype."""
    return [replace(row, prefill=row.prefill.to(dtype), trailing=row.trailing.to(dtype)) for row in rows]


# ------------------------------------------------------------ distances


def relative_distances(got: KeptLogits, want: KeptLogits) -> Tensor:
    """Relative L2 distance of each pick's logits: float64 [frames, rows, groups], NaN where one has none."""
    nothing = torch.isnan(got.values).all(-1) | torch.isnan(want.values).all(-1)
    out = torch.empty(nothing.shape, dtype=torch.float64, device=got.values.device)
    for frame, (a, b) in enumerate(zip(got.values, want.values, strict=True)):  # bounded memory
        b = b.double().nan_to_num()
        out[frame] = (a.double().nan_to_num() - b).norm(dim=-1) / b.norm(dim=-1)
    return out.masked_fill(nothing, torch.nan)


def summary(got: KeptLogits, want: KeptLogits) -> dict[str, float]:
    """Root mean square, median and largest of the relative distances: of code 0 and of the other codes."""
    distances, found = relative_distances(got, want), {}
    for name, part in (("talker", distances[..., :1]), ("predictor", distances[..., 1:])):
        values = part[~part.isnan()]
        found[f"{name}_rms"] = float(values.square().mean().sqrt())
        found[f"{name}_median"] = float(values.median())
        found[f"{name}_largest"] = float(values.max())
    return found


# ------------------------------------------------------------ picks that part


@dataclass(frozen=True)
class Parting:
    """A pick that comes out differently from different implementations' logits on the same codes before it."""

    row: int
    frame: int
    codebook: int
    codes: Mapping[str, int]
    """what each implementation's logits give"""
    error: Mapping[str, float]
    """largest difference from the reference's logits among the candidates, in logits"""
    near: Mapping[str, Near]
    """what each implementation's pick was nearest to"""


class Picks:
    """Picks from kept logits, as the specification makes them."""

    def __init__(self, talker: Talker, rows: Sequence[RowRequest], codes: Sequence[Tensor]) -> None:
        config = talker.config
        self.rows, self.codes, self.eos_id = rows, [c.cpu() for c in codes], config.codec_eos_id
        self.suppressed = suppressed_tokens(config.vocab_size, config.codec_eos_id, torch.device("cpu"))
        self.sizes = [config.vocab_size] + [config.code_predictor.vocab_size] * (config.num_code_groups - 1)

    def processed(self, row: int, frame: int, book: int, logits: Tensor) -> tuple[Tensor, SamplingParams, int]:
        """fp32 logits as they are drawn from, on the host; how; and the random word."""
        request = self.rows[row]
        values = logits[: self.sizes[book]].float().cpu()
        if book == 0:
            seen = torch.zeros(len(values), dtype=torch.bool)
            seen[self.codes[row][:frame, 0]] = True
            early = self.eos_id if frame < MIN_TOKENS else None
            values = process_talker_logits(values, seen, request.repetition_penalty, self.suppressed, early)
        word = int(random_words(request.seed, frame, 1, len(self.sizes), request.part)[0, book])
        return values, request.predictor if book else request.talker, word

    def pick(self, row: int, frame: int, book: int, logits: Tensor) -> int:
        """The code."""
        values, params, word = self.processed(row, frame, book, logits)
        return int(pick_philox(values, params, torch.tensor(word)) if params.do_sample else pick_greedy(values))

    def near(self, row: int, frame: int, book: int, logits: Tensor) -> Near:
        """What the pick is nearest to."""
        values, params, word = self.processed(row, frame, book, logits)
        return near_picks(values, params, word, self.pick(row, frame, book, logits))[0]


def partings(picks: Picks, kept: Mapping[str, KeptLogits], reference: str) -> Iterator[Parting]:
    """All picks of all rows whose codes are not the same from all implementations' logits."""
    frames, rows, groups, _ = kept[reference].values.shape
    for frame in range(frames):
        here = {name: logits.values[frame].cpu() for name, logits in kept.items()}
        for row in range(rows):
            for book in range(groups):
                codes = {name: picks.pick(row, frame, book, values[row, book]) for name, values in here.items()}
                if len(set(codes.values())) > 1:
                    logits = {name: values[row, book] for name, values in here.items()}
                    yield _parting(picks, (row, frame, book), codes, logits, reference)


def _parting(
    picks: Picks, place: tuple[int, int, int], codes: Mapping[str, int], logits: Mapping[str, Tensor], reference: str
) -> Parting:
    size = picks.sizes[place[2]]
    want = logits[reference][:size].double()
    top = want.topk(min(50, size)).indices
    error = {
        name: float((values[:size].double() - want)[top].abs().max())
        for name, values in logits.items()
        if name != reference
    }
    return Parting(*place, codes, error, {name: picks.near(*place, v) for name, v in logits.items()})


def described(parting: Parting) -> dict[str, Any]:
    """For JSON."""
    return {
        "row": parting.row, "frame": parting.frame, "codebook": parting.codebook, "codes": dict(parting.codes),
        "error": dict(parting.error), "near": {name: vars(near) for name, near in parting.near.items()},
    }  # fmt: skip
