"""What came of an applied plan."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qwen3tts.errors import OptimizationApplicationError, OptimizationError
from qwen3tts.optimization.manifest import FORMAT_VERSION, Manifest, status_json
from qwen3tts.optimization.passes import Evidence, OptimizationPass, PassContext, PassResult
from qwen3tts.optimization.plan import Declaration

NOT_CHECKED = "not checked when it was applied"


@dataclass(frozen=True)
class AppliedPass:
    """One pass of the plan."""

    item: OptimizationPass
    declaration: Declaration
    result: PassResult
    metadata: str = "{}"
    """what apply told, as canonical JSON"""
    evidence: Evidence | None = None
    evidence_reason: str = NOT_CHECKED
    """why there is none"""

    @classmethod
    def of(cls, item: OptimizationPass, declaration: Declaration, result: PassResult) -> "AppliedPass":
        """Raises OptimizationPlanError for metadata that is no JSON."""
        metadata = status_json(result.metadata, f"the metadata of {declaration.pass_id!r}")
        return cls(item, declaration, result, metadata)

    @property
    def pass_id(self) -> str:
        """Without the version."""
        return self.declaration.pass_id

    @property
    def applicable(self) -> bool:
        """Whether the pass did anything; runtime_status has the reason if it did not."""
        return self.result.not_applicable is None

    def manifest_entry(self) -> dict[str, Any]:
        """Its entry in the manifest, with the runtime status of this moment."""
        declared = self.declaration
        return {
            "pass": declared.pass_id,
            "kind": declared.kind,
            "version": declared.version,
            "configuration": json.loads(declared.configuration),
            "capabilities": dataclasses.asdict(declared.capabilities),
            "metadata": self._metadata(),
            "runtime_status": self._status(),
        }

    def _metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = json.loads(self.metadata)
        if self.evidence is not None:
            return metadata | {"evidence": self.evidence.to_json()}
        if metadata.get("evidence") is not None:
            return metadata
        reason = self.evidence_reason if self.applicable else "not applicable"
        return {"evidence_reason": reason} | metadata | {"evidence": None}

    def _status(self) -> dict[str, Any]:
        if not self.applicable:
            return {"outcome": "not-applicable", "reason": self.result.not_applicable}
        status = self.item.runtime_manifest_status(self.result)
        told: dict[str, Any] = json.loads(status_json(status, f"the runtime status of {self.pass_id!r}"))
        return told | {"outcome": "applied"}


@dataclass(frozen=True)
class OptimizationResult:
    """An active plan."""

    model: Any
    """the Runtime that speaks now"""
    context: PassContext
    applied: tuple[AppliedPass, ...]

    def manifest(self) -> Manifest:
        """The record of this moment. Raises OptimizationApplicationError if a pass cannot tell its status."""
        entries: list[Mapping[str, Any]] = []
        for applied in self.applied:
            try:
                entries.append(applied.manifest_entry())
            except Exception as error:
                raise OptimizationApplicationError(applied.pass_id, error) from error
        return Manifest(
            {"format_version": FORMAT_VERSION, "context": dataclasses.asdict(self.context), "passes": entries}
        )

    def with_evidence(self, pass_id: str, evidence: Evidence | str) -> "OptimizationResult":
        """The same result with a pass's check, or the reason why there is none, recorded."""
        if all(applied.pass_id != pass_id for applied in self.applied):
            raise OptimizationError(f"The active plan has no pass {pass_id!r}.")
        changes: dict[str, Any] = {"evidence": None, "evidence_reason": evidence}
        if isinstance(evidence, Evidence):
            changes = {"evidence": evidence, "evidence_reason": ""}
        return dataclasses.replace(
            self,
            applied=tuple(
                dataclasses.replace(applied, **changes) if applied.pass_id == pass_id else applied
                for applied in self.applied
            ),
        )
