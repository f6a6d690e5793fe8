"""Fills a module that was built on the meta device with the tensors of a checkpoint."""

import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from qwen3tts.checkpoint.upload import upload
from qwen3tts.checkpoint.weights import DtypeRule, TensorReader
from qwen3tts.errors import WeightsError, nearest

CPU, META = torch.device("cpu"), torch.device("meta")
BLOCK = 1 << 18
"""Elements that are converted and checked at a time: the check then reads what is still in the CPU's cache."""

ALIGNED = 512
"""bytes; where each tensor of a shared allocation begins, as torch's own do on a GPU"""


@dataclass(frozen=True)
class _Slot:
    """A place in a module: one parameter or buffer."""

    owner: torch.nn.Module
    name: str
    key: str
    meta: torch.Tensor
    is_parameter: bool


def load_module(
    module: torch.nn.Module,
    reader: TensorReader,
    *,
    prefix: str,
    device: torch.device,
    dtype_of: DtypeRule,
    on_host: Collection[str] = (),
    together: Callable[[str, torch.dtype], str | None] = lambda key, stored: None,
) -> None:
    """Loads every parameter and persistent buffer of `module` from the key `prefix` + its name.

    Each target is allocated in `dtype_of(key, stored dtype)` on `device`, or in host memory if its name is in
    `on_host`, and filled straight from the mapped file, so that no second copy of the weights exists. Parameters get
    requires_grad=False. Tied tensors stay tied. together(key, stored dtype): the name of the allocation on `device`
    that a tensor shares with others of that name, None for one of its own. Within one there are no gaps, and when all
    of its tensors are given up, all of its memory comes back. Raises WeightsError for a missing key, another shape, a
    weight that is NaN or infinite, and a weight that overflows the target dtype; the module is then unusable.
    """
    slots: dict[int, list[_Slot]] = {}
    kept = {prefix + name for name in on_host}
    for slot in _slots(module, prefix):
        slots.setdefault(id(slot.meta), []).append(slot)
    groups = list(slots.values())
    groups.sort(key=lambda group: -group[0].meta.numel())  # the largest first, so that the threads end together
    with torch.inference_mode(False):
        shapes = {group[0].key: _target(group[0], reader, META, dtype_of) for group in groups}
        shared: dict[str, list[str]] = {}
        for key in shapes:
            name = None if key in kept else together(key, reader.dtype(key))
            if name is not None:
                shared.setdefault(name, []).append(key)
        placed: dict[str, Tensor] = {}
        for keys in shared.values():
            placed |= zip(keys, joined([shapes[key] for key in keys], device), strict=True)
        tensors = [
            placed[key]
            if key in placed
            else torch.empty(like.shape, dtype=like.dtype, device=CPU if key in kept else device)
            for key, like in shapes.items()
        ]
    _fill([group[0].key for group in groups], tensors, reader)
    for group, tensor in zip(groups, tensors, strict=True):
        if group[0].is_parameter:
            tensor = torch.nn.Parameter(tensor, requires_grad=False)
        for slot in group:
            setattr(slot.owner, slot.name, tensor)


def reload_parameters(
    module: torch.nn.Module,
    reader: TensorReader,
    *,
    prefix: str,
    device: torch.device,
    dtype_of: DtypeRule,
    names: Collection[str] | None = None,
    on_host: Collection[str] = (),
) -> None:
    """Reads parameters of a module that `load_module` filled once more: the Parameter objects stay, their bytes become
    those of the checkpoint. A parameter that has lost its storage gets a new one. names: None = all.

    Raises WeightsError as load_module does, and for a name that is no parameter of the module."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name in parameters if names is None else names:
        if name not in parameters:
            raise WeightsError(f"{name!r} is no parameter of {type(module).__name__}.{nearest(name, parameters)}")
        key, parameter = prefix + name, parameters[name]
        source = reader.read(key)
        dtype = dtype_of(key, source.dtype)
        with torch.inference_mode(False):
            target, place = parameter.data, CPU if name in on_host else device
            if (target.shape, target.dtype, target.device) != (source.shape, dtype, place) or not target.data_ptr():
                target = torch.empty(source.shape, dtype=dtype, device=place)
            _copy_checked(source, target, f"{reader.folder}: tensor {key!r}")
            parameter.data = target
        reader.forget(key)


def _workers() -> int:
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _slots(module: torch.nn.Module, prefix: str) -> Iterator[_Slot]:
    for path, owner in module.named_modules(remove_duplicate=False):
        start = f"{prefix}{path}." if path else prefix
        for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            yield _Slot(owner, name, start + name, parameter, True)
        persistent = owner.state_dict(keep_vars=True) if next(owner.buffers(recurse=False), None) is not None else {}
        for name, buffer in owner.named_buffers(recurse=False, remove_duplicate=False):
            if name in persistent:
                yield _Slot(owner, name, start + name, buffer, False)


def _target(slot: _Slot, reader: TensorReader, device: torch.device, dtype_of: DtypeRule) -> Tensor:
    shape = reader.shape(slot.key)
    if shape != tuple(slot.meta.shape):
        raise WeightsError(
            f"{reader.folder}: tensor {slot.key!r} is {list(shape)}, expected {list(slot.meta.shape)}"
        )
    return torch.empty(shape, dtype=dtype_of(slot.key, reader.dtype(slot.key)), device=device)


def joined(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Uninitialized contiguous tensors of these shapes and dtypes, in one allocation on the device."""
    sizes = [-(-tensor.nbytes // ALIGNED) * ALIGNED for tensor in tensors]
    with torch.inference_mode(False):
        parts = torch.empty(sum(sizes), dtype=torch.uint8, device=device).split(sizes) if tensors else ()
        return [
            part[: like.nbytes].view(like.dtype).view(like.shape).data  # its versions are not counted with the others'
            for part, like in zip(parts, tensors, strict=True)
        ]


def _fill(keys: Sequence[str], targets: Sequence[Tensor], reader: TensorReader) -> None:
    """Copies and converts tensors to where they belong, those in host memory and those on a GPU at the same time.

    Raises WeightsError for values that are not finite before or after."""
    remote = [i for i, target in enumerate(targets) if target.device.type == "cuda"]
    local = [i for i, target in enumerate(targets) if target.device.type != "cuda"]

    def copy(i: int) -> None:
        _copy_checked(reader.read(keys[i]), targets[i], f"{reader.folder}: tensor {keys[i]!r}")
        reader.forget(keys[i])

    with ThreadPoolExecutor(max_workers=_workers()) as pool:
        copies = pool.map(copy, local)
        if remote:
            bad = upload(
                [targets[i] for i in remote],
                lambda at: reader.read(keys[remote[at]]),
                targets[remote[0]].device,
                done=lambda at: reader.forget(keys[remote[at]]),
            )
            for i in (remote[at] for at in bad):
                _explain(reader.read(keys[i]), targets[i].dtype, f"{reader.folder}: tensor {keys[i]!r}")
        for _ in copies:
            pass  # raises what a copy has raised


def _copy_checked(source: torch.Tensor, target: torch.Tensor, what: str) -> None:
    """Copies and converts block by block; raises WeightsError for values that are not finite before or after."""
    flat_source, flat_target = source.view(-1), target.view(-1)
    for start in range(0, flat_source.numel(), BLOCK):
        block = flat_source[start : start + BLOCK]
        copied = flat_target[start : start + BLOCK].copy_(block)
        low, high = (float(bound) for bound in torch.aminmax(copied if copied.device.type == "cpu" else block))
        if not (math.isfinite(low) and math.isfinite(high)):
            _explain(block, target.dtype, what)
        if copied.device.type != "cpu" and not torch.tensor([low, high]).to(target.dtype).isfinite().all():
            _explain(block, target.dtype, what)


def _explain(block: torch.Tensor, dtype: torch.dtype, what: str) -> None:
    bad = int((~block.isfinite()).sum())
    if bad:
        raise WeightsError(f"{what} has weights that are NaN or infinite; the file is damaged or its training failed")
    largest = float(block.abs().max())
    raise WeightsError(f"{what} has weights up to {largest:g}, which overflow {dtype}; load it in bfloat16 or float32")
