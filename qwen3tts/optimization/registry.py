"""Passes by name: this package's own, imported when they are asked for, and those of other packages.

Another package registers a pass with the decorator `register`, or lists the class under the entry point group
"qwen3tts.passes", where it is found without being imported first:

    [project.entry-points."qwen3tts.passes"]
    fast-norms = "example_package.passes:FastNorms"
"""

import importlib
import importlib.metadata
import inspect
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from qwen3tts.errors import OptimizationPlanError, nearest
from qwen3tts.optimization.passes import Capabilities, OptimizationPass
from qwen3tts.options import reject_unknown

logger = logging.getLogger(__name__)

ENTRY_POINTS = "qwen3tts.passes"
BUILT_IN = {
    "codec-kernels": "qwen3tts.backends.native.codec_kernels:CodecKernels",
    "compile": "qwen3tts.optimization.torch_compile:TorchCompile",
    "custom-kernels": "qwen3tts.backends.native.custom_kernels:CustomKernels",
    "diffusion-cache": "qwen3tts.optimization.diffusion:DiffusionCache",
    "diffusion-sampling": "qwen3tts.optimization.diffusion:DiffusionSampling",
    "flash-attention-4": "qwen3tts.optimization.flash_attention:FlashAttention4",
}
"""name -> "module:Class"; none of these modules is imported before its pass is asked for"""

PassClass = TypeVar("PassClass", bound=type[OptimizationPass])


class PassRegistry:
    """Names and the classes behind them. Safe to use from several threads."""

    def __init__(self, lazy: dict[str, str] | None = None, *, entry_points: str | None = None) -> None:
        """lazy: name -> "module:Class", imported on first use. entry_points: a group that is searched when a name is
        unknown or the list is asked for."""
        self._lock = threading.Lock()
        """never held during an import: the imported module may register passes, in a thread of its own, too"""
        self._classes: dict[str, type[OptimizationPass]] = {}
        self._lazy = dict(lazy or {})
        self._group = entry_points
        self._searching = threading.local()
        self._broken: dict[str, str] = {}
        """entry points that could not be loaded, and why"""

    def register(self, name: str) -> Callable[[PassClass], PassClass]:
        """A class decorator: the pass `name` is made by this class. Raises OptimizationPlanError if the name is taken
        by another class, or the class declares itself incompletely."""

        def decorate(cls: PassClass) -> PassClass:
            self._add(name, cls)
            return cls

        return decorate

    def _add(self, name: str, cls: object) -> None:
        if not isinstance(name, str) or not name or name != name.strip():
            raise OptimizationPlanError(f"A pass cannot be registered as {name!r}; expected a name like 'fast-norms'.")
        checked = check_declaration(cls)
        with self._lock:
            target = f"{checked.__module__}:{checked.__qualname__}"
            known = self._classes.get(name)
            taken = f"{known.__module__}:{known.__qualname__}" if known is not None else self._lazy.get(name, target)
            if taken != target:
                raise OptimizationPlanError(
                    f"The pass name {name!r} is taken by {taken}; register {target} as another."
                )
            self._classes[name] = checked

    def names(self) -> tuple[str, ...]:
        """All names, sorted. Not a promise that each works on this machine."""
        self._discover()
        with self._lock:
            return tuple(sorted({*self._classes, *self._lazy}))

    def get(self, name: str) -> type[OptimizationPass]:
        """The class of a name. Raises OptimizationPlanError if there is none, or its module cannot be imported."""
        cls, target = self._find(name)
        if cls is None and target is None:
            self._discover()
            cls, target = self._find(name)
        if cls is not None:
            return cls
        if target is None:
            raise OptimizationPlanError(self._unknown(name))
        self._add(name, self._import(name, target))
        with self._lock:
            return self._classes[name]

    def _find(self, name: str) -> tuple[type[OptimizationPass] | None, str | None]:
        with self._lock:
            return self._classes.get(name), self._lazy.get(name)

    def create(self, name: str, /, **options: object) -> OptimizationPass:
        """A pass with options. Raises OptimizationPlanError for the name, OptionError for the options."""
        cls = self.get(name)
        parameters = inspect.signature(cls).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            reject_unknown(options, parameters or ["(none)"], f"The pass {name!r} has no such option:")
        return cls(**options)

    def _unknown(self, name: object) -> str:
        names = self.names()
        with self._lock:
            broken = self._broken.get(str(name))
        text = f"There is no optimization pass {name!r}.{nearest(name, names)} There are: {', '.join(names)}."
        if broken is not None:
            text += f" The package that offers {name!r} could not be loaded: {broken}."
        return text

    def _import(self, name: str, target: str) -> object:
        module, _, attribute = target.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise OptimizationPlanError(f"The pass {name!r} cannot be imported from {target}: {error}") from error

    def _discover(self) -> None:
        """Loads the entry points, once. A broken one is reported and left out: it must not take the others along.

        Nobody waits for another thread's search, which may itself wait for a module that this thread is importing: two
        at once find the same. A module that asks for the list while it is being loaded gets what is known by then."""
        group = self._group
        if group is None or getattr(self._searching, "now", False):
            return
        self._searching.now = True
        try:
            for point in importlib.metadata.entry_points(group=group):
                try:
                    self._add(point.name, point.load())
                except Exception as error:  # code of other packages: anything can go wrong in it
                    self._note_broken(point, error)
        finally:
            self._searching.now = False
        self._group = None

    def _note_broken(self, point: importlib.metadata.EntryPoint, error: Exception) -> None:
        with self._lock:
            known = point.name in self._broken
            self._broken[point.name] = f"{type(error).__name__}: {error}".rstrip(".")
        if not known:
            logger.warning(
                "The optimization pass %r of the entry point %r is left out: %s: %s",
                point.name, point.value, type(error).__name__, error,
            )  # fmt: skip


def check_declaration(cls: object) -> type[OptimizationPass]:
    """The class, if it declares all that a pass must. Raises OptimizationPlanError, also for a reversible pass that
    has no restore of its own."""
    if not (isinstance(cls, type) and issubclass(cls, OptimizationPass)):
        raise OptimizationPlanError(f"{cls!r} is no optimization pass; expected a subclass of OptimizationPass.")
    problems = []
    for name in ("pass_id", "optimization_kind"):
        value = getattr(cls, name, None)
        if not isinstance(value, str) or not value.strip() or "@" in value:
            problems.append(f"{name} is {value!r}, expected a name")
    version = getattr(cls, "pass_version", None)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        problems.append(f"pass_version is {version!r}, expected a whole number from 1 up")
    if not isinstance(getattr(cls, "requires_architecture_support", None), bool):
        problems.append("requires_architecture_support is no bool")
    capabilities = getattr(cls, "capabilities", None)
    if not isinstance(capabilities, Capabilities):
        problems.append(f"capabilities is {capabilities!r}, expected Capabilities(...)")
    elif capabilities.reversible and cls.restore is OptimizationPass.restore:
        problems.append("it is declared reversible, but does not override restore()")
    if inspect.isabstract(cls):
        problems.append(f"it does not define {', '.join(sorted(cls.__abstractmethods__))}()")
    if problems:
        raise OptimizationPlanError(f"The pass class {cls.__name__} is incomplete: {'; '.join(problems)}.")
    return cls


default_registry = PassRegistry(BUILT_IN, entry_points=ENTRY_POINTS)
register = default_registry.register
