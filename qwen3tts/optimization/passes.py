"""What an optimization pass is: one class that declares itself, checks, changes the model and takes the change back.

A pass acts on "the model", which is the loaded Runtime (runtime.protocols.Runtime): it patches or replaces its parts
`talker`, `frames` and `codec`. Whatever a pass does, the model goes on computing the same thing.

    @register("fast-norms")
    @dataclass(frozen=True, kw_only=True)
    class FastNorms(OptimizationPass):
        pass_id = "example.fast-norms"
        optimization_kind = "kernels"
        capabilities = Capabilities(devices=("cuda",))
        policy: str = "auto"                        # an option: tts.apply_optimization_plan([("fast-norms", {...})])

        def apply(self, model, context): ...        # -> PassResult(model, state)
        def restore(self, model, state, context): ...  # -> the model as apply found it
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, cast

from qwen3tts.errors import OptimizationError, OptimizationPlanError, OptionError, nearest

MODES = ("inference", "training")


def check_mode(mode: object) -> None:
    """Raises OptimizationPlanError for anything but a mode."""
    if mode not in MODES:
        raise OptimizationPlanError(
            f"The mode is {mode!r}; expected one of {', '.join(map(repr, MODES))}.{nearest(mode, MODES)}"
        )


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Where a pass works and what it touches. The manager refuses a plan that contradicts it, before any change."""

    modes: tuple[str, ...] = ("inference",)
    devices: tuple[str, ...] = ("cpu", "cuda")
    """torch's device types; AMD cards are "cuda", too"""
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    streaming_safe: bool = True
    distributed_safe: bool = True
    persistent: bool = False
    """the change survives saving"""
    reversible: bool = True
    changes_parameter_names: bool = False
    """refused on this model: its state_dict keys are kept"""
    changes_topology: bool = False
    portable_export: bool = True

    def __post_init__(self) -> None:
        for name in ("modes", "devices", "dtypes"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not value or not all(isinstance(x, str) and x for x in value):
                raise OptimizationPlanError(f"Capabilities.{name} is {value!r}; expected a tuple of names.")
        for mode in self.modes:
            check_mode(mode)
        for f in dataclasses.fields(self):
            if f.type in (bool, "bool") and not isinstance(getattr(self, f.name), bool):
                raise OptimizationPlanError(f"Capabilities.{f.name} is {getattr(self, f.name)!r}; expected a bool.")

    def problems(self, context: "PassContext") -> list[str]:
        """What of the context a pass with these capabilities does not support, in words; empty: all is well."""
        found = []
        for what, value, known in (
            ("the mode", context.mode, self.modes),
            ("the device", context.device, self.devices),
            ("the dtype", context.dtype, self.dtypes),
        ):
            if value not in known:
                found.append(f"{what} {value!r} (it works with {', '.join(known)})")
        if context.streaming and not self.streaming_safe:
            found.append("streaming (pass a PassContext with streaming=False if nobody will stream)")
        if context.distributed and not self.distributed_safe:
            found.append("distributed runs")
        if context.persist_result and not self.persistent:
            found.append("a result that is saved")
        if self.changes_parameter_names:
            found.append("parameter names that stay as they are")
        return found


@dataclass(frozen=True, kw_only=True)
class PassContext:
    """What a plan is applied for."""

    mode: str = "inference"
    architecture: str = "qwen3-tts-12hz"
    device: str = "cpu"
    """torch's device type"""
    dtype: str = "float32"
    """of the transformers; the codec computes in float32"""
    streaming: bool = True
    distributed: bool = False
    persist_result: bool = False

    def __post_init__(self) -> None:
        check_mode(self.mode)
        for name in ("architecture", "device", "dtype"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise OptimizationPlanError(f"PassContext.{name} is {value!r}; expected a name.")
        for name in ("streaming", "distributed", "persist_result"):
            if not isinstance(getattr(self, name), bool):
                raise OptimizationPlanError(f"PassContext.{name} is {getattr(self, name)!r}; expected a bool.")


@dataclass(frozen=True)
class Gain:
    """What a pass was measured to be worth."""

    figure: str
    """for instance "1.8 times the frames per second at 1 stream" """
    card: str
    commit: str


@dataclass(frozen=True)
class Evidence:
    """One equivalence check of an applied pass against the plain model."""

    compared: str
    """what, on which inputs"""
    reference: str
    error: float | None
    """largest difference, in the units of `compared`; None: not a number"""
    bound: float
    passed: bool
    seconds: float
    gain: Gain | None = None

    def __post_init__(self) -> None:
        if self.error is not None and not math.isfinite(self.error):
            object.__setattr__(self, "error", None)
        if self.error is None:
            object.__setattr__(self, "passed", False)

    def to_json(self) -> dict[str, Any]:
        """As it stands in a manifest."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class PassResult:
    """What `apply` gives back."""

    model: Any
    """the Runtime to go on with: the one it was given, or another one in its place"""
    state: Any = None
    """what `restore` needs"""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """JSON for the manifest"""
    not_applicable: str | None = None
    """why nothing was done; `restore` is not called then"""


class OptimizationPass(ABC):
    """Base of all passes. Instances hold options only, so that one may serve several models: what belongs to a model
    goes into PassResult.state. Options are the keyword arguments of the constructor; a dataclass makes them at once."""

    pass_id: ClassVar[str]
    pass_version: ClassVar[int] = 1
    optimization_kind: ClassVar[str]
    """what it replaces: "compile", "attention-backend", "kernels", "codec-kernels", ..."""
    requires_architecture_support: ClassVar[bool] = False
    """refuse models whose architecture does not list the kind"""
    capabilities: ClassVar[Capabilities] = Capabilities()

    @property
    def optional(self) -> bool:
        """True (a policy of "auto"): where its capabilities or `validate` refuse, the pass is left off and the manifest
        says why. False: that is an error, before anything is changed."""
        return False

    @property
    def qualified_id(self) -> str:
        """pass_id@pass_version."""
        return f"{self.pass_id}@{self.pass_version}"

    def manifest_configuration(self) -> Mapping[str, Any]:
        """Every option with its value, as JSON. Must not depend on the model. A dataclass's fields by default."""
        if dataclasses.is_dataclass(self):
            return dataclasses.asdict(cast(Any, self))
        return {}

    def validate(self, model: Any, context: PassContext) -> None:  # noqa: B027 most passes need no more than their capabilities
        """Raises OptimizationCompatibilityError if the pass cannot work here. Changes nothing, builds nothing.

        The manager has compared capabilities and context already. See `optional` for policies."""

    @abstractmethod
    def apply(self, model: Any, context: PassContext) -> PassResult:
        """Makes the change. A pass that raises half way is undone by the manager: attributes, submodules and Parameter
        objects are put back. Weights whose bytes it had changed are read from the checkpoint again. It leaves no stream
        open, and calls neither close() nor a plan's methods of the model it works on."""

    def restore(self, model: Any, state: Any, context: PassContext) -> Any:
        """Undoes apply and returns the very object that apply was given, every byte of the weights and of the tables
        derived from them included: the manager compares. May be called again after it raised.

        Every reversible pass overrides this."""
        raise OptimizationError(f"The pass {self.qualified_id!r} cannot be undone.")

    def runtime_manifest_status(self, result: PassResult) -> Mapping[str, Any]:
        """What became of the pass by now, as JSON; may change while the model runs (a compiler that fell back)."""
        return {}

    def not_applicable_result(self, model: Any, reason: str) -> PassResult:
        """The result of an apply that left the model alone; the manifest says why."""
        if not isinstance(reason, str) or not reason.strip():
            raise OptimizationPlanError(f"The pass {self.qualified_id!r} does not apply, but says no reason.")
        return PassResult(model, not_applicable=reason.strip())

    def check(self, model: Any, state: Any, context: PassContext) -> Evidence | None:
        """Compares the applied pass with the plain model's own function on fresh inputs, in well under a second.

        None: this pass has no check."""
        return None

    def export_portable_state(self, model: Any, state: Any, context: PassContext) -> Mapping[str, Any]:
        """Weights in the plain model's names, loadable without this pass."""
        raise OptimizationError(
            f"The pass {self.qualified_id!r} exports nothing of its own: names and values of the weights are those of "
            "the checkpoint."
        )

    def route_optimizer_parameters(
        self, model: Any, *, optimizer_names: tuple[str, ...]
    ) -> Mapping[str, Iterable[tuple[str, Any]]]:
        """Which optimizer trains which parameter, for passes of the mode "training"."""
        raise OptimizationError(f"The pass {self.qualified_id!r} does not route parameters to optimizers.")


def fail_option(name: str, value: object, expected: str) -> NoReturn:
    """Raises OptionError for a pass's option."""
    raise OptionError(f"The option {name} is {value!r}; expected {expected}.")


def check_choice(name: str, value: object, choices: Iterable[str | None]) -> None:
    """Raises OptionError if a pass's option is none of the choices."""
    choices = tuple(choices)
    if value not in choices:
        fail_option(name, value, "one of " + ", ".join(map(repr, choices)))


def check_flag(name: str, value: object) -> None:
    """Raises OptionError if a pass's option is no bool."""
    if not isinstance(value, bool):
        fail_option(name, value, "True or False")
