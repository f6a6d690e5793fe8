"""From what a caller passes to a plan: pass objects in order, and what each of them declared at that moment."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from qwen3tts.errors import OptimizationError, OptimizationPlanError
from qwen3tts.optimization.manifest import status_json
from qwen3tts.optimization.passes import Capabilities, OptimizationPass
from qwen3tts.optimization.registry import PassRegistry, check_declaration

MAX_PASSES = 64
EXPECTED = "expected a name, a (name, options) pair, an OptimizationPass, or a list of these"


@dataclass(frozen=True)
class Declaration:
    """What a pass says of itself; it must say the same until it was applied."""

    pass_id: str
    version: int
    kind: str
    requires_architecture_support: bool
    capabilities: Capabilities
    configuration: str
    """canonical JSON"""

    @property
    def qualified_id(self) -> str:
        """pass_id@version."""
        return f"{self.pass_id}@{self.version}"

    @classmethod
    def of(cls, item: OptimizationPass) -> "Declaration":
        """Raises OptimizationPlanError for an incomplete one."""
        check_declaration(type(item))
        for name in ("pass_id", "pass_version", "optimization_kind", "requires_architecture_support", "capabilities"):
            if name in getattr(item, "__dict__", {}):
                raise OptimizationPlanError(
                    f"{type(item).__name__} sets {name} on the object; a pass declares it on its class."
                )
        where = f"the configuration of {item.pass_id!r}"
        try:
            configuration = status_json(item.manifest_configuration(), where)
        except OptimizationError:
            raise
        except Exception as error:
            raise OptimizationPlanError(
                f"The pass {item.pass_id!r} cannot say its configuration: {type(error).__name__}: {error}"
            ) from error
        return cls(
            item.pass_id,
            item.pass_version,
            item.optimization_kind,
            item.requires_architecture_support,
            dataclasses.replace(item.capabilities),
            configuration,
        )


@dataclass(frozen=True)
class PlanItem:
    """One pass of a plan and its declaration."""

    item: OptimizationPass
    declaration: Declaration

    def check_unchanged(self) -> None:
        """Raises OptimizationPlanError if the pass now declares something else."""
        now = Declaration.of(self.item)
        if now != self.declaration:
            fields = (field.name for field in dataclasses.fields(Declaration))
            changed = [name for name in fields if getattr(now, name) != getattr(self.declaration, name)]
            raise OptimizationPlanError(
                f"The pass {self.declaration.qualified_id!r} changed its {', '.join(changed)} while the plan was "
                "applied; options are fixed when a pass is made."
            )


def make_plan(passes: object, registry: PassRegistry) -> tuple[PlanItem, ...]:
    """Raises OptimizationPlanError (a ValueError) for an empty plan, an unknown name or a pass given twice, and
    OptionError for wrong options."""
    items = [_one(entry, registry) for entry in _entries(passes)]
    if not items:
        raise OptimizationPlanError(f"The plan is empty; {EXPECTED}.")
    plan = tuple(PlanItem(item, Declaration.of(item)) for item in items)
    seen: set[str] = set()
    for entry in plan:
        name = entry.declaration.pass_id
        if name in seen:
            raise OptimizationPlanError(f"The plan has the pass {name!r} twice; give each once, with all its options.")
        seen.add(name)
    return plan


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], Mapping)


def _entries(passes: object) -> list[object]:
    if isinstance(passes, str | OptimizationPass) or _is_pair(passes):
        return [passes]
    if isinstance(passes, Iterable) and not isinstance(passes, Mapping | bytes | bytearray):
        found = list(islice(passes, MAX_PASSES + 1))
        if len(found) > MAX_PASSES:
            raise OptimizationPlanError(f"The plan has more than {MAX_PASSES} passes.")
        return found
    raise OptimizationPlanError(f"passes is a {type(passes).__name__}; {EXPECTED}.")


def _one(entry: Any, registry: PassRegistry) -> OptimizationPass:
    if isinstance(entry, OptimizationPass):
        return entry
    if isinstance(entry, str):
        return registry.create(entry)
    if _is_pair(entry):
        name, options = entry
        if not all(isinstance(key, str) for key in options):
            raise OptimizationPlanError(f"The options of {name!r} have a key that is no string.")
        return registry.create(name, **options)
    if isinstance(entry, type) and issubclass(entry, OptimizationPass):
        raise OptimizationPlanError(f"{entry.__name__} is a class; pass an object of it: {entry.__name__}().")
    raise OptimizationPlanError(f"The plan contains a {type(entry).__name__}; {EXPECTED}.")
