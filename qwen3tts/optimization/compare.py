"""Each pass of a plan against the plain model: the same codes, the same audio, how much faster.

Everything is spoken on fixed seeds, greedily and sampled. Times are medians of runs in turn with the plain model, in
both orders, so that a machine that slows down slows both.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from qwen3tts._version import __version__
from qwen3tts.backends.native.build_info import build_record
from qwen3tts.errors import OptimizationError, OptionError
from qwen3tts.optimization.apply import run_check
from qwen3tts.optimization.evidence_store import EvidenceKey, EvidenceStore, evidence_key
from qwen3tts.optimization.passes import Evidence, Gain
from qwen3tts.optimization.profiles import PlannedPass, Profile
from qwen3tts.optimization.registry import default_registry
from qwen3tts.options import GenerateOptions

TEXTS = ("The quick brown fox jumps over the lazy dog.", "Numbers: 3, 14, and 15.", "你好，世界。")
SEEDS = (0, 1, 20_240_601)


@dataclass(frozen=True)
class Case:
    """One thing that is spoken."""

    text: str
    voice: Any
    options: GenerateOptions

    @property
    def name(self) -> str:
        """For messages."""
        return f"{'sampled' if self.options.do_sample else 'greedy'}, seed {self.options.seed}"


@dataclass(frozen=True)
class Spoken:
    """What came out."""

    codes: torch.Tensor
    samples: torch.Tensor


@dataclass
class Row:
    """One line of the table: a pass, or the whole plan."""

    name: str
    status: str
    """"on", or why not"""
    frames: int = 0
    equal_frames: int = 0
    first_difference: str = ""
    audio_error: float | None = None
    """largest difference of samples where the codes are equal, relative to the largest sample"""
    evidence: Evidence | None = None
    """the check of the pass; of several, the one nearest to its bound"""
    key: EvidenceKey | None = None
    plain_seconds: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether every code was that of the plain model."""
        return self.frames > 0 and self.equal_frames == self.frames

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the plain model; None if the pass was not on."""
        if not self.seconds:
            return None
        return statistics.median(self.plain_seconds) / statistics.median(self.seconds)

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        kept = {name: value for name, value in asdict(self).items() if name != "key"}
        return kept | {"equal": self.equal, "ratio": self.ratio}


def cases(tts: Any, frames: int) -> list[Case]:
    """Three texts: greedy with the first seed, sampled with all."""
    voice: Any = None
    if tts.config.model_type == "custom_voice":
        voice = tts.voices[0]
    elif tts.config.model_type == "base":
        from qwen3tts.voice.voice import Voice

        width = tts.config.talker.transformer.hidden_size
        values = torch.randn(width, generator=torch.Generator().manual_seed(7)).tolist()
        voice = Voice.from_x_vector(values, name="check")
    greedy = GenerateOptions(
        do_sample=False, subtalker_dosample=False, repetition_penalty=1.0, max_frames=frames, seed=SEEDS[0]
    )
    sampled = [GenerateOptions(seed=seed, max_frames=frames) for seed in SEEDS]
    return [
        Case(text, voice, options) for text, options in zip((TEXTS[0], *TEXTS), (greedy, *sampled), strict=True)
    ]


def compare(
    tts: Any,
    profile: Profile,
    *,
    frames: int = 24,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda line: None,
    store: EvidenceStore | None = None,
) -> list[Row]:
    """A row per pass, then one for the whole plan if it has several. No plan may be active; none is afterwards.

    store: keeps each pass's check with the gain that was measured, for the manifests of later loads.

    Raises OptionError for a profile without passes, and what apply_optimization_plan raises for a plan that is active.
    """
    if not profile.passes:
        raise OptionError(f"The profile {profile.name!r} for {profile.backend!r} has no passes: nothing to compare.")
    spoken = cases(tts, frames)
    reference = [_speak(tts, case) for case in spoken]
    plans: list[tuple[str, Sequence[PlannedPass]]] = [(p.name, [p]) for p in profile.passes]
    if len(plans) > 1:
        plans.append(("all together", profile.passes))
    rows = []
    for name, plan in plans:
        progress(f"checking {name}")
        rows.append(_row(tts, name, plan, spoken, reference, repeats))
        if store is not None and len(plan) == 1:
            _keep(store, tts, rows[-1], frames)
    return rows


def _keep(store: EvidenceStore, tts: Any, row: Row, frames: int) -> None:
    if row.evidence is None or row.key is None or row.ratio is None:
        return
    native = getattr(tts.engine.runtime, "native", None)
    commit = "" if native is None else build_record(native.name).commit
    figure = f"{row.ratio:.2f} times as fast as the plain model: generate() of {frames} frames, one text, {tts.dtype}"
    store.put(row.key, replace(row.evidence, gain=Gain(figure, row.key.device, commit or f"version {__version__}")))


def _row(
    tts: Any, name: str, plan: Sequence[PlannedPass], spoken: list[Case], reference: list[Spoken], repeats: int
) -> Row:
    row = Row(name, "on")
    try:
        items = [default_registry.create(p.name, **p.options) for p in plan]
        with _applied(tts, items) as result:
            idle = [a.result.not_applicable for a in result.applied if not a.applicable]
            if len(idle) == len(items):
                row.status = f"not applicable: {idle[0]}"
                return row
            for case, wanted in zip(spoken, reference, strict=True):
                _compare(row, case, wanted, _speak(tts, case))
            found = [run_check(applied, result) for applied in result.applied if applied.applicable]
            row.evidence = max((e for e in found if e is not None), key=_weight, default=None)
            row.key = evidence_key(result.applied[0].declaration, result.model)
    except OptimizationError as error:
        row.status = f"cannot be used: {error}"
        return row
    timed = spoken[-1]
    for i in range(repeats):
        for on in (True, False) if i % 2 else (False, True):
            if not on:
                row.plain_seconds.append(_time(tts, timed))
                continue
            with _applied(tts, items):
                row.seconds.append(_time(tts, timed))
    return row


def _weight(evidence: Evidence) -> float:
    """The error over its bound, by which a plan's checks are compared."""
    if evidence.error is None:
        return math.inf
    return evidence.error / evidence.bound if evidence.bound else math.copysign(math.inf, evidence.error or -1.0)


@contextmanager
def _applied(tts: Any, items: Sequence[Any]) -> Iterator[Any]:
    result = tts.apply_optimization_plan(items)
    try:
        yield result
    finally:
        tts.restore_optimization_plan()


def _speak(tts: Any, case: Case) -> Spoken:
    speech = tts.generate(case.text, voice=case.voice, options=case.options)
    return Spoken(torch.as_tensor(speech.codes), torch.as_tensor(speech.samples))


def _time(tts: Any, case: Case) -> float:
    """Seconds of one request; one more goes before it, for what only the first one pays."""
    _speak(tts, case)
    started = time.perf_counter()
    _speak(tts, case)
    return time.perf_counter() - started


def _compare(row: Row, case: Case, wanted: Spoken, got: Spoken) -> None:
    total = max(len(wanted.codes), len(got.codes))
    common = min(len(wanted.codes), len(got.codes))
    same = (wanted.codes[:common] == got.codes[:common]).all(-1)
    equal = int(same.to(torch.int8).cumprod(0).sum()) if common else 0
    row.frames += total
    row.equal_frames += equal
    if equal < total and not row.first_difference:
        where = f"frame {equal}"
        if equal < common:
            book = int((wanted.codes[equal] != got.codes[equal]).nonzero()[0])
            where += f", codebook {book}: {int(got.codes[equal, book])}, plain {int(wanted.codes[equal, book])}"
        row.first_difference = f"{case.name}: {where}"
    if equal == total and total:
        error = float((wanted.samples - got.samples).abs().max() / wanted.samples.abs().max().clamp(min=1e-9))
        row.audio_error = error if row.audio_error is None else max(row.audio_error, error)
