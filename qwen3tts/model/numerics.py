"""The arithmetic the model is defined in: no TF32, no reduced-precision sums, no autocast, no gradients.

torch keeps these switches per process. `exact_arithmetic` sets them for the length of a `with` block and gives back
what it found, so that an application's own settings survive.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

_lock = threading.Lock()
_holders: set[object] = set()
_saved: list[Callable[[], None]] = []


@functools.cache
def _switches() -> tuple[tuple[Any, str, object], ...]:
    """(owner, attribute, exact value) of every switch this torch has."""
    backends: Any = torch.backends
    found: list[tuple[Any, str, object]] = []
    if hasattr(backends.cuda.matmul, "fp32_precision"):
        owners = [backends.cuda.matmul, getattr(backends.cudnn, "conv", None), getattr(backends.cudnn, "rnn", None)]
        mkldnn = getattr(backends, "mkldnn", None)
        owners += [getattr(mkldnn, "matmul", None), getattr(mkldnn, "conv", None)]
        found += [(o, "fp32_precision", "ieee") for o in owners if o is not None and hasattr(o, "fp32_precision")]
    else:
        found += [(backends.cuda.matmul, "allow_tf32", False), (backends.cudnn, "allow_tf32", False)]
    for name in ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"):
        found.append((backends.cuda.matmul, name, False))
    return tuple(found)


def _enter(holder: object) -> None:
    with _lock:
        if not _holders:
            try:
                for owner, name, value in _switches():
                    old = getattr(owner, name)
                    if old != value:
                        setattr(owner, name, value)
                        _saved.append(functools.partial(setattr, owner, name, old))
            except BaseException:
                _restore()
                raise
        _holders.add(holder)


def _restore() -> None:
    while _saved:
        _saved.pop()()


def _leave(holder: object) -> None:
    with _lock:
        _holders.discard(holder)
        if not _holders:
            _restore()


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A GPU is torch's current one inside: kernels that are not torch's are launched on that."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@contextlib.contextmanager
def exact_arithmetic(device: torch.device) -> Iterator[None]:
    """Runs its block in IEEE fp32 (and fp32-accumulated bf16/fp16) products and convolutions, without autograd, on its
    device.

    Threads may overlap: the first one in sets the switches, the last one out restores them."""
    holder = object()
    try:  # from here on: an interrupt inside _enter is undone, too
        _enter(holder)
        with on_device(device), torch.inference_mode(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        _leave(holder)
