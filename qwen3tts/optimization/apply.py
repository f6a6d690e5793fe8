"""A profile on a loaded model: which passes can be used here, what their checks said, what was left off and why."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from qwen3tts.errors import (
    OptimizationApplicationError,
    OptimizationCompatibilityError,
    OptimizationError,
    OptimizationPlanError,
    OptionError,
    shortened,
)
from qwen3tts.optimization.contents import Snapshot
from qwen3tts.optimization.evidence_store import EvidenceStore, evidence_key
from qwen3tts.optimization.manifest import check_evidence, presentable
from qwen3tts.optimization.passes import Evidence, OptimizationPass, PassContext, PassResult
from qwen3tts.optimization.profiles import PlannedPass, Profile
from qwen3tts.optimization.registry import default_registry
from qwen3tts.optimization.result import AppliedPass, OptimizationResult
from qwen3tts.optimization.structure import Structure

logger = logging.getLogger(__name__)

NOT_VERIFIED = "not checked: verify=False"


class Optimized(Protocol):
    """What of TTS this module uses."""

    @property
    def engine(self) -> Any:
        """Its runtime is the model."""
        ...

    def apply_optimization_plan(self, passes: object) -> OptimizationResult:
        """See TTS."""
        ...

    def optimization_result(self) -> OptimizationResult | None:
        """See TTS."""
        ...

    def restore_optimization_plan(self) -> Any:
        """See TTS."""
        ...

    def record_optimization_evidence(self, pass_id: str, evidence: Evidence | str) -> None:
        """See TTS."""
        ...


@dataclass(frozen=True)
class _Failure:
    """Why a pass of the plan cannot stay."""

    reason: str
    cause: Exception | None = None


def apply_profile(tts: Optimized, profile: Profile, *, verify: bool = True, store: EvidenceStore | None = None) -> None:
    """Applies the profile's passes. One that cannot be used here, that raises, or whose check against the plain model
    fails or raises, is left off with a warning and an entry in the manifest if its requirement is "auto"; if it is
    "required", this raises OptimizationCompatibilityError or OptimizationApplicationError, and nothing is applied.

    A check's result is kept in `store` (None: the user's cache) and not made again. verify=False makes none and says so
    in the manifest. A pass that could not be undone is an error whatever its requirement."""
    if not profile.passes:
        return
    store = EvidenceStore() if store is None else store
    chosen = _usable_passes(profile, tts.engine.runtime)
    started = time.perf_counter()
    while failed := _attempt(tts, profile, chosen, store if verify else None):
        for at, failure in failed.items():
            chosen[at] = _refuse(profile.passes[at], chosen[at], failure)
    logger.info("profile %s, checked in %.2f s", profile, time.perf_counter() - started)


def _attempt(
    tts: Optimized, profile: Profile, chosen: Sequence[OptimizationPass], store: EvidenceStore | None
) -> dict[int, _Failure]:
    """Applies the plan and checks it. Passes that failed, by their place in the plan: then nothing stays applied."""
    try:
        result = tts.apply_optimization_plan(chosen)
    except OptimizationApplicationError as error:
        return {_place(chosen, error): _Failure(f"it raised {_said(error.cause)}", error)}
    try:
        failed = _verify(tts, result, profile, store)
    except OptimizationApplicationError as error:  # a pass that can no longer tell its status
        failed = {_place(chosen, error): _Failure(f"it raised {_said(error.cause)}", error)}
    except BaseException:
        tts.restore_optimization_plan()
        raise
    if failed:
        try:
            tts.restore_optimization_plan()
        except OptimizationApplicationError as error:
            if not error.intact:
                raise
            logger.warning("%s", error)
    return failed


def _place(chosen: Sequence[OptimizationPass], error: OptimizationApplicationError) -> int:
    """Which pass failed. Raises the error if it cannot be left off, or the model is not what it was."""
    if error.intact:
        for at, item in enumerate(chosen):
            if item.pass_id == error.pass_id and not isinstance(item, _LeftOff):
                return at
    raise error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {shortened(error)}" if str(error).strip() else type(error).__name__


def _usable_passes(profile: Profile, model: Any) -> list[OptimizationPass]:
    """Asks each pass whether it can be used. Raises OptimizationPlanError if the asking changed the model."""
    before = Snapshot(Structure(model))
    changed: list[str] = []
    lost: list[Exception] = []
    try:
        chosen = [_usable(planned, model) for planned in profile.passes]
    finally:
        changed = before.changed()
        if changed:
            lost = before.put_back()
    if changed:
        names = " or ".join(repr(planned.name) for planned in profile.passes)
        done = f"the change could not be taken back ({lost[0]})" if lost else "the change was taken back"
        raise OptimizationPlanError(
            f"The pass {names} changed the model while it was asked whether it fits ({changed[0]}); {done}."
        )
    return chosen


def _usable(planned: PlannedPass, model: Any) -> OptimizationPass:
    """The pass, or in its place one that does nothing and says why. Raises OptimizationError if it is required."""
    item = default_registry.create(planned.name, **planned.options)
    context = context_of(model)
    try:
        problems = item.capabilities.problems(context)
        if problems:
            raise OptimizationCompatibilityError(f"it does not support {'; nor '.join(problems)}")
        item.validate(model, context)
    except (OptimizationError, OptionError) as error:
        return _refuse(planned, item, _Failure(str(error), error))
    except Exception as error:  # the pass may be anybody's
        return _refuse(planned, item, _Failure(f"it raised {_said(error)}", error))
    return item


def context_of(model: Any) -> PassContext:
    """What a plan on this model is for, unless the caller says otherwise."""
    return PassContext(device=model.device.type, dtype=str(model.dtype).removeprefix("torch."))


def _refuse(planned: PlannedPass, item: OptimizationPass, failure: _Failure) -> OptimizationPass:
    reason = presentable(failure.reason).rstrip(".")
    if planned.requirement == "required":
        if isinstance(failure.cause, OptimizationApplicationError):
            raise failure.cause
        raise OptimizationCompatibilityError(
            f"The pass {planned.name!r} is required, but cannot be used: {reason}."
        ) from failure.cause
    logger.warning("The pass %r is left off: %s.", planned.name, reason)
    return left_off(item, reason)


class _LeftOff(OptimizationPass):
    """Stands where a pass would; see left_off."""

    pass_id = "left-off"
    optimization_kind = "none"
    original: ClassVar[OptimizationPass]
    reason: ClassVar[str]

    def manifest_configuration(self) -> Mapping[str, Any]:
        return self.original.manifest_configuration()

    def apply(self, model: Any, context: PassContext) -> PassResult:
        return self.not_applicable_result(model, self.reason)

    def restore(self, model: Any, state: Any, context: PassContext) -> Any:
        return model


def left_off(item: OptimizationPass, reason: str) -> OptimizationPass:
    """A pass with the declaration of `item` that leaves the model alone and says why."""
    kind = type(item)
    made: OptimizationPass = type(
        f"{kind.__name__}LeftOff",
        (_LeftOff,),
        {
            "pass_id": kind.pass_id,
            "pass_version": kind.pass_version,
            "optimization_kind": kind.optimization_kind,
            "capabilities": replace(
                kind.capabilities, reversible=True, devices=("cpu", "cuda", "mps"),
                dtypes=("float32", "bfloat16", "float16"),
            ),
            "original": item,
            "reason": reason,
        },
    )()  # fmt: skip
    return made


def _failure(evidence: Evidence) -> _Failure:
    shown = "not a number" if evidence.error is None else f"{evidence.error:.3g}"
    return _Failure(
        f"its check failed: {evidence.compared} differ by {shown} from {evidence.reference}, more than "
        f"{evidence.bound:.3g}"
    )


def _verify(
    tts: Optimized, result: OptimizationResult, profile: Profile, store: EvidenceStore | None
) -> dict[int, _Failure]:
    """Checks every applied pass, or takes what the store has, and records it in the manifest; those that failed, by
    their place in the plan."""
    failed: dict[int, _Failure] = {}
    for at, applied in enumerate(result.applied):
        if not applied.applicable:
            continue
        evidence: Evidence | str = NOT_VERIFIED
        if store is not None:
            try:
                found = _evidence(result, at, profile.passes[at], store)
            except OptimizationCompatibilityError as error:
                failed[at] = _Failure(str(error), error)
                continue
            if found is not None and not found.passed:
                failed[at] = _failure(found)
            evidence = "this pass has no check" if found is None else found
        tts.record_optimization_evidence(applied.pass_id, evidence)
    return failed


def _evidence(result: OptimizationResult, at: int, planned: PlannedPass, store: EvidenceStore) -> Evidence | None:
    applied = result.applied[at]
    key = evidence_key(applied.declaration, result.model)
    known = store.get(key)
    if known is not None:
        return known
    started = time.perf_counter()
    evidence = run_check(applied, result)
    if evidence is None:
        return None
    logger.info("checked %s in %.2f s: error %s", planned.name, time.perf_counter() - started, evidence.error)
    store.put(key, evidence)
    return evidence


def run_check(applied: AppliedPass, result: OptimizationResult) -> Evidence | None:
    """The check of an applied pass, None if it has none. Whether it passed, its error and bound decide.

    Raises OptimizationCompatibilityError if it raises, or returns what no manifest may hold."""
    try:
        evidence = applied.item.check(result.model, applied.result.state, result.context)
        if evidence is None:
            return None
        if not isinstance(evidence, Evidence):
            raise OptimizationPlanError(f"a {type(evidence).__name__}; expected Evidence or None")
        if evidence.passed and evidence.error is not None and evidence.error > evidence.bound:
            evidence = replace(evidence, passed=False)
        check_evidence(evidence.to_json(), "it")
    except OptimizationPlanError as error:
        raise OptimizationCompatibilityError(f"its check returned something odd: {error}") from error
    except Exception as error:  # the pass may be anybody's
        raise OptimizationCompatibilityError(f"its check raised {_said(error)}") from error
    return evidence


def checks(result: OptimizationResult | None) -> Sequence[str]:
    """One line per pass of a plan: what it is, and what its check said."""
    lines = []
    for applied in () if result is None else result.applied:
        what = f"{applied.pass_id}@{applied.declaration.version}"
        if not applied.applicable:
            lines.append(f"{what}: left off: {applied.result.not_applicable}")
        elif applied.evidence is None:
            lines.append(f"{what}: on; {applied.evidence_reason}")
        else:
            error = "not a number" if applied.evidence.error is None else f"{applied.evidence.error:.3g}"
            lines.append(f"{what}: on; error {error} of at most {applied.evidence.bound:.3g}")
    return lines
