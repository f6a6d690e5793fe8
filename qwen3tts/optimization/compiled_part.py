"""One function behind torch.compile, with the plain function for shapes that cannot be compiled."""

import logging
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._dynamo.exc
from torch import Tensor

from qwen3tts.errors import OptimizationError
from qwen3tts.model.layers import rows_are_independent

logger = logging.getLogger(__name__)

FAILURES: tuple[type[Exception], ...] = tuple(
    kind
    for name in ("TorchDynamoException", "FailOnRecompileLimitHit")
    if (kind := getattr(torch._dynamo.exc, name, None)) is not None
)
"""what torch raises when it cannot compile, as against errors of the computation itself"""
MAX_FAILED_SHAPES = 16
"""after as many, the whole part runs eagerly"""
SIDE_BY_SIDE = "rows of several texts on the CPU: each is summed on its own"

Shapes = tuple[tuple[int, ...], ...]


class CompiledPart:
    """function(module, *tensors), compiled. Used by one thread at a time."""

    def __init__(
        self, name: str, function: Callable[..., Any], arguments: Mapping[str, Any], *, required: bool
    ) -> None:
        """arguments: of torch.compile. required: raise instead of running a shape eagerly."""
        self.name, self.eager, self.required = name, function, required
        # torch keeps compilations per code object and limits their number: every part gets its own
        code = function.__code__.replace(co_name=name.replace(".", "_").replace("-", "_"))
        copy = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
        self.compiled: Callable[..., Any] = torch.compile(copy, **arguments)
        self.failed: dict[Shapes, str] = {}
        self.compiled_calls = self.side_by_side_calls = 0

    def __call__(self, module: Any, *tensors: Tensor) -> Any:
        first = tensors[0]
        if first.device.type == "cpu" and first.ndim == 2 and first.shape[0] > 1 and rows_are_independent():
            self.side_by_side_calls += 1
            return self.plain(module, *tensors)
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        if shapes in self.failed or len(self.failed) >= MAX_FAILED_SHAPES:
            return self.plain(module, *tensors)
        try:
            result = self.compiled(module, *tensors)
        except FAILURES as error:
            self._note(shapes, error)
            return self.plain(module, *tensors)
        self.compiled_calls += 1
        return result

    def plain(self, module: Any, *tensors: Tensor) -> Any:
        """The same without compilation."""
        return self.eager(module, *tensors)

    def _note(self, shapes: Shapes, error: Exception) -> None:
        reason = (
            f"{type(error).__name__}: {' '.join(str(error).split()[:40])}"  # the rest is advice for compiler authors
        )
        if self.required:
            raise OptimizationError(
                f"{self.name} cannot be compiled for {list(map(list, shapes))}: {reason.rstrip('.')}. "
                "requirement='auto' runs it eagerly."
            ) from error
        self.failed[shapes] = reason
        logger.warning("%s runs eagerly for the shapes %s: %s", self.name, list(map(list, shapes)), reason)

    def status(self) -> dict[str, Any]:
        """For the manifest."""
        eager = [{"shapes": [list(s) for s in shapes], "reason": reason} for shapes, reason in self.failed.items()]
        if self.side_by_side_calls:
            eager.append({"shapes": [], "reason": SIDE_BY_SIDE})
        return {"compiled_calls": self.compiled_calls, "eager": eager}
