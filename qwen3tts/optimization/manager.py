"""Applies a plan to a model as one step: all of it, or nothing that could be noticed."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from qwen3tts.errors import (
    OptimizationApplicationError,
    OptimizationCompatibilityError,
    OptimizationError,
    OptimizationPlanError,
    OptimizationStateError,
    Qwen3TTSError,
)
from qwen3tts.optimization.contents import Snapshot
from qwen3tts.optimization.manifest import Manifest
from qwen3tts.optimization.passes import Evidence, OptimizationPass, PassContext, PassResult, check_mode
from qwen3tts.optimization.plan import PlanItem, make_plan
from qwen3tts.optimization.registry import PassRegistry, default_registry
from qwen3tts.optimization.result import AppliedPass, OptimizationResult
from qwen3tts.optimization.structure import Structure, state_keys

logger = logging.getLogger(__name__)

ARCHITECTURE = "qwen3-tts-12hz"
SUPPORTED_KINDS = frozenset({"compile", "attention-backend", "kernels", "codec-kernels"})
"""what this architecture offers to passes that require its support; it has no diffusion stage"""


@dataclass(frozen=True)
class _Active:
    result: OptimizationResult
    original: Any
    before: Snapshot


EndStreams = Callable[[], int]
"""ends the streams that passes have begun, and says how many there were"""


class OptimizationManager:
    """The plans of one model. Not thread-safe: the caller holds the model's turn and sees to it that it is idle."""

    def __init__(self, end_streams: EndStreams = lambda: 0) -> None:
        self.busy = False
        """a plan is being applied or restored: whoever calls now is one of its passes"""
        self._active: dict[str, _Active] = {}
        self._end_streams = end_streams

    @contextmanager
    def _working(self) -> Iterator[None]:
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    # ------------------------------------------------------------ what is active

    def result(self, mode: str) -> OptimizationResult | None:
        """The active plan of a mode."""
        check_mode(mode)
        active = self._active.get(mode)
        return None if active is None else active.result

    def manifests(self) -> dict[str, Manifest]:
        """The manifest of every active plan by mode."""
        return {mode: active.result.manifest() for mode, active in self._active.items()}

    def original(self, mode: str) -> Any:
        """The model that the active plan was applied to. Raises OptimizationStateError without one."""
        return self._require(mode, "restore").original

    def record_evidence(self, mode: str, pass_id: str, evidence: Evidence | str) -> None:
        """Notes a check's result, or why there is none, in the manifest of the active plan."""
        active = self._require(mode, "record evidence")
        result = active.result.with_evidence(pass_id, evidence)
        result.manifest()
        self._active[mode] = _Active(result, active.original, active.before)

    def discard(self) -> None:
        """Forgets every plan, because the model is gone; what they remembered of it is freed."""
        self._active.clear()

    def _require(self, mode: str, what: str) -> _Active:
        check_mode(mode)
        if mode not in self._active:
            raise OptimizationStateError(f"There is no active optimization plan for {mode!r}: nothing to {what}.")
        return self._active[mode]

    # ------------------------------------------------------------ apply

    def apply(
        self,
        model: Any,
        passes: object,
        *,
        mode: str = "inference",
        context: PassContext | None = None,
        registry: PassRegistry | None = None,
    ) -> OptimizationResult:
        """Applies passes in order; the result's model replaces `model`.

        Nothing has changed after OptimizationPlanError, OptionError, OptimizationStateError and
        OptimizationCompatibilityError. OptimizationApplicationError: a pass failed and the plan was undone."""
        check_mode(mode)
        context = _context(model, mode, context)
        for other in self._active:
            raise OptimizationStateError(
                f"A plan is already active for {other!r}; restore_optimization_plan(mode={other!r}) takes it back."
            )
        if registry is not None and not isinstance(registry, PassRegistry):
            raise OptimizationPlanError(f"registry is a {type(registry).__name__}; expected a PassRegistry.")
        with self._working():
            plan = make_plan(passes, default_registry if registry is None else registry)
            before = Snapshot(Structure(model))
            logger.debug("remembered the model as it is")
            left_off = self._validate(plan, model, context, before)
            result = _Transaction(model, context, before, left_off, self._end_streams).run(plan)
        self._active[mode] = _Active(result, model, before)
        logger.info("applied %s", ", ".join(entry.declaration.qualified_id for entry in plan))
        return result

    def _validate(self, plan: Sequence[PlanItem], model: Any, context: PassContext, before: Snapshot) -> dict[str, str]:
        """Asks every pass whether it fits: pass_id -> why an optional one is left off."""
        left_off: dict[str, str] = {}
        asked: list[str] = []
        changed: list[str] = []
        try:
            for entry in plan:
                try:
                    _check_capabilities(entry, context)
                    if type(entry.item).validate is not OptimizationPass.validate:
                        asked.append(entry.declaration.qualified_id)
                    _ask(entry, model, context, before)
                except OptimizationCompatibilityError as error:
                    if not entry.item.optional:
                        raise
                    left_off[entry.declaration.pass_id] = str(error)
                    logger.info("left off: %s", error)
            for entry in plan:
                entry.check_unchanged()
        finally:
            streams = self._end_streams()
            if asked:
                changed = before.changed()
            if changed:
                _log(before.put_back())
        if changed or streams:
            what = changed[0] if changed else "an open stream"
            raise _changed_by(asked, what)
        return left_off

    # ------------------------------------------------------------ restore

    def restore(self, mode: str = "inference") -> Any:
        """Undoes the active plan in reverse order and returns the model as it was before: the same object, with the
        same parts, modules and Parameters.

        Raises OptimizationStateError if none is active or a pass cannot be undone. OptimizationApplicationError: a
        pass failed to undo itself; the plan is over all the same, and the model was put back without its help."""
        active = self._require(mode, "restore")
        stuck = [a.declaration.qualified_id for a in active.result.applied if not a.declaration.capabilities.reversible]
        if stuck:
            raise OptimizationStateError(f"{', '.join(stuck)} cannot be undone; load the model again.")
        del self._active[mode]
        with self._working():
            self._restore(active)
        return active.original

    def _restore(self, active: _Active) -> None:
        before, applied = active.before, active.result.applied
        errors: list[tuple[str, Exception]] = []
        try:
            errors = _undo(applied, active.result.model, active.original, active.result.context)
        except BaseException:
            self._end_streams()
            _log(before.put_back())
            raise
        streams = self._end_streams()
        left = before.changed()
        suspects = [a for a in applied if a.applicable] or applied
        names = " or ".join(repr(a.pass_id) for a in suspects)
        if left and not errors:
            error = OptimizationError(f"{left[0]} was not given back as it had been by {names}")
            errors.append((suspects[0].pass_id, error))
        if streams:
            errors.append((suspects[0].pass_id, OptimizationError(f"{_count(streams)} left open by {names}")))
        if errors:
            lost = before.put_back()
            (first, cause), *others = errors
            raise OptimizationApplicationError(
                first, cause, [*(error for _, error in others), *lost], intact=not lost
            ) from cause


def _count(streams: int) -> str:
    return "1 stream was" if streams == 1 else f"{streams} streams were"


def _log(lost: Sequence[Exception]) -> None:
    """What could not be put back, where another error is on its way to the caller."""
    for error in lost:
        logger.error("The model could not be put back, load it again: %s: %s", type(error).__name__, error)


def _changed_by(names: Sequence[str], what: str) -> OptimizationPlanError:
    which = " or ".join(map(repr, names))
    return OptimizationPlanError(
        f"The pass {which} changed the model while it was asked whether it fits ({what}); the change was taken back."
    )


def _check_capabilities(entry: PlanItem, context: PassContext) -> None:
    declared = entry.declaration
    problems = declared.capabilities.problems(context)
    if declared.requires_architecture_support and declared.kind not in SUPPORTED_KINDS:
        problems.append(f"the architecture {context.architecture!r}, which offers no {declared.kind!r}")
    if problems:
        raise OptimizationCompatibilityError(
            f"The pass {declared.qualified_id!r} does not support {'; nor '.join(problems)}."
        )


def _ask(entry: PlanItem, model: Any, context: PassContext, before: Snapshot) -> None:
    """Lets a pass validate, and sees to it that it only looks; bytes are compared when all were asked."""
    name = entry.declaration.qualified_id
    try:
        entry.item.validate(model, context)
    except OptimizationError:
        raise
    except Qwen3TTSError as error:
        raise OptimizationCompatibilityError(f"The pass {name!r} cannot be used: {error}") from error
    except Exception as error:
        raise OptimizationApplicationError(entry.declaration.pass_id, error) from error
    changed = before.structure.differences() or before.structure.touched_weights()
    if changed:
        _log(before.put_back())
        raise _changed_by([name], changed[0])


class _Transaction:
    """One run over a plan that ends with every pass applied, or undone."""

    def __init__(
        self, model: Any, context: PassContext, before: Snapshot, left_off: dict[str, str], end_streams: EndStreams
    ) -> None:
        self.model, self.context, self.before, self.left_off = model, context, before, left_off
        self.end_streams = end_streams
        self.original, self.keys = model, state_keys(model)
        self.applied: list[AppliedPass] = []

    def run(self, plan: Sequence[PlanItem]) -> OptimizationResult:
        """Applies the passes in order and makes the first manifest."""
        current = plan[0].declaration.pass_id
        try:
            for entry in plan:
                current = entry.declaration.pass_id
                self._step(entry)
            result = OptimizationResult(self.model, self.context, tuple(self.applied))
            result.manifest()
        except BaseException as error:
            cause: BaseException = error
            if isinstance(error, OptimizationApplicationError):  # a pass that cannot tell its status
                current, cause = error.pass_id, error.cause
            undone: list[tuple[str, Exception]] = []
            try:
                undone = _undo(self.applied, self.model, self.original, self.context, forced=True)
            finally:  # also when the undoing is interrupted
                self.end_streams()
                lost = self.before.put_back()
            problems = [*(problem for _, problem in undone), *lost]
            if not isinstance(error, Exception):
                for problem in problems:
                    logger.error("undoing an interrupted plan: %s", problem)
                raise
            raise OptimizationApplicationError(current, cause, problems, intact=not lost) from cause
        return result

    def _step(self, entry: PlanItem) -> None:
        reason = self.left_off.get(entry.declaration.pass_id)
        if reason is not None:
            result = entry.item.not_applicable_result(self.model, reason)
        else:
            step = Structure(self.model)
            try:
                result = entry.item.apply(self.model, self.context)
            except BaseException:
                step.put_back()  # so that the passes before this one find what they left
                raise
        if not isinstance(result, PassResult):
            raise OptimizationError(f"apply() returned a {type(result).__name__}; expected a PassResult")
        applied = AppliedPass(entry.item, entry.declaration, result)
        self.applied.append(applied)
        _check_runtime(result.model, "apply")
        self.model = result.model
        self.applied[-1] = AppliedPass.of(entry.item, entry.declaration, result)
        missing = set(self.keys) ^ set(state_keys(self.model))
        if missing:
            raise OptimizationError(f"the state_dict has other keys now, for instance {min(missing)!r}; they must stay")
        streams = self.end_streams() or len(self.model.frames.open_slots())
        if streams:
            raise OptimizationError(f"{_count(streams)} left open by apply(); a pass closes what it opens")
        entry.check_unchanged()


def _check_runtime(model: Any, method: str) -> None:
    for part in ("config", "talker", "frames", "codec"):
        if not hasattr(model, part):
            raise OptimizationError(
                f"{method}() returned a {type(model).__name__} without {part!r}; expected a Runtime"
            )


def _undo(
    applied: Sequence[AppliedPass], model: Any, original: Any, context: PassContext, *, forced: bool = False
) -> list[tuple[str, Exception]]:
    """Restores passes in reverse order, all of them whatever fails: (pass, error) of each that did.

    forced: the manager puts the model back anyway, so that a pass without a way back is no error."""
    errors: list[tuple[str, Exception]] = []
    for entry in reversed(applied):
        if not entry.applicable or (forced and not entry.declaration.capabilities.reversible):
            continue
        step = Structure(model)
        try:
            model = entry.item.restore(model, entry.result.state, context)
            _check_runtime(model, "restore")
        except Exception as error:
            errors.append((entry.pass_id, error))
            step.put_back()
            model = step.model
    if not errors and not forced and model is not original:
        errors.append((applied[0].pass_id, OptimizationError("restore() did not return the model it was applied to")))
    return errors


def _context(model: Any, mode: str, context: PassContext | None) -> PassContext:
    own = PassContext(
        mode=mode,
        architecture=ARCHITECTURE,
        device=torch.device(model.device).type,
        dtype=str(model.dtype).removeprefix("torch."),
    )
    if context is None:
        return own
    if not isinstance(context, PassContext):
        raise OptimizationPlanError(f"context is a {type(context).__name__}; expected a PassContext.")
    if context.mode != mode:
        raise OptimizationPlanError(f"mode is {mode!r}, but the context was made for {context.mode!r}.")
    for name in ("architecture", "device", "dtype"):
        if getattr(context, name) != getattr(own, name):
            raise OptimizationCompatibilityError(
                f"The context says {name}={getattr(context, name)!r}, but the model has {getattr(own, name)!r}."
            )
    return context
