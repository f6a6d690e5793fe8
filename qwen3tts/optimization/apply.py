"""A profile on a loaded model: which passes can be used here, what their checks said, what was left off and why."""

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

from qwen3tts._version import __version__
from qwen3tts.errors import OptimizationCompatibilityError, OptimizationError, OptionError
from qwen3tts.optimization.evidence_store import EvidenceKey, EvidenceStore, canonical_options
from qwen3tts.optimization.passes import Evidence, OptimizationPass, PassContext, PassResult
from qwen3tts.optimization.plan import Declaration
from qwen3tts.optimization.profiles import PlannedPass, Profile
from qwen3tts.optimization.registry import default_registry
from qwen3tts.optimization.result import OptimizationResult

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


def apply_profile(tts: Optimized, profile: Profile, *, verify: bool = True, store: EvidenceStore | None = None) -> None:
    """Applies the profile's passes. One that cannot be used here, or whose check against the plain model fails, is left
    off with a warning and an entry in the manifest if its requirement is "auto"; if it is "required", this raises
    OptimizationCompatibilityError and nothing is applied.

    A check's result is kept in `store` (None: the user's cache) and not made again. verify=False makes none and says so
    in the manifest."""
    if not profile.passes:
        return
    store = EvidenceStore() if store is None else store
    model = tts.engine.runtime
    chosen = [_usable(planned, model) for planned in profile.passes]
    started = time.perf_counter()
    while True:
        result = tts.apply_optimization_plan(chosen)
        try:
            failed = _verify(tts, result, profile, store if verify else None)
        except BaseException:
            tts.restore_optimization_plan()
            raise
        if not failed:
            break
        tts.restore_optimization_plan()
        for at, evidence in failed.items():
            chosen[at] = _refuse(profile.passes[at], chosen[at], _failure(evidence))
    logger.info("profile %s, checked in %.2f s", profile, time.perf_counter() - started)


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
        return _refuse(planned, item, str(error))
    return item


def context_of(model: Any) -> PassContext:
    """What a plan on this model is for, unless the caller says otherwise."""
    return PassContext(device=model.device.type, dtype=str(model.dtype).removeprefix("torch."))


def _refuse(planned: PlannedPass, item: OptimizationPass, reason: str) -> OptimizationPass:
    reason = reason.rstrip(".")
    if planned.requirement == "required":
        raise OptimizationCompatibilityError(f"The pass {planned.name!r} is required, but cannot be used: {reason}.")
    logger.warning("The pass %r is left off: %s.", planned.name, reason)
    return left_off(item, reason)


def left_off(item: OptimizationPass, reason: str) -> OptimizationPass:
    """A pass with the declaration of `item` that leaves the model alone and says why."""
    configuration = dict(item.manifest_configuration())

    def apply(self: OptimizationPass, model: Any, context: PassContext) -> PassResult:
        return self.not_applicable_result(model, reason)

    def restore(self: OptimizationPass, model: Any, state: Any, context: PassContext) -> Any:
        return model

    kind = type(item)
    made: OptimizationPass = type(
        f"{kind.__name__}LeftOff",
        (OptimizationPass,),
        {
            "pass_id": kind.pass_id,
            "pass_version": kind.pass_version,
            "optimization_kind": kind.optimization_kind,
            "capabilities": replace(
                kind.capabilities, reversible=True, devices=("cpu", "cuda", "mps"),
                dtypes=("float32", "bfloat16", "float16"),
            ),
            "manifest_configuration": lambda self: configuration,
            "apply": apply,
            "restore": restore,
        },
    )()  # fmt: skip
    return made


def _failure(evidence: Evidence) -> str:
    shown = "not a number" if evidence.error is None else f"{evidence.error:.3g}"
    return (
        f"its check failed: {evidence.compared} differ by {shown} from {evidence.reference}, more than "
        f"{evidence.bound:.3g}"
    )


def _verify(
    tts: Optimized, result: OptimizationResult, profile: Profile, store: EvidenceStore | None
) -> dict[int, Evidence]:
    """Checks every applied pass, or takes what the store has, and records it in the manifest; those that failed, by
    their place in the plan."""
    failed: dict[int, Evidence] = {}
    for at, applied in enumerate(result.applied):
        if not applied.applicable:
            continue
        evidence: Evidence | str
        if store is None:
            evidence = NOT_VERIFIED
        else:
            found = _evidence(result, at, profile.passes[at], store)
            if found is not None and not found.passed:
                failed[at] = found
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
    evidence = applied.item.check(result.model, applied.result.state, result.context)
    if evidence is None:
        return None
    logger.info("checked %s in %.2f s: error %s", planned.name, time.perf_counter() - started, evidence.error)
    store.put(key, evidence)
    return evidence


def evidence_key(declaration: Declaration, model: Any) -> EvidenceKey:
    """Under which a check of this pass on this model, card and installation is kept."""
    device: torch.device = model.device
    native = getattr(model, "native", None)
    return EvidenceKey(
        pass_id=declaration.pass_id,
        pass_version=declaration.version,
        options=canonical_options({"configuration": declaration.configuration}),
        module="" if native is None else module_hash(native.module.__file__),
        package=__version__,
        torch=str(torch.__version__),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        driver=driver_version() if device.type == "cuda" else "",
        dtype=str(model.dtype),
        architecture=hashlib.sha256(repr(model.config).encode()).hexdigest()[:16],
    )


@cache
def module_hash(path: str) -> str:
    """SHA-256 of a native module's file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def driver_version() -> str:
    """Of the GPU driver, as the kernel reports it; "unknown" where it does not."""
    for driver in ("nvidia", "amdgpu"):
        try:
            return f"{driver} {Path(f'/sys/module/{driver}/version').read_text().strip()}"
        except OSError:
            continue  # the other one, or none that says its version
    return "unknown"


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
