"""What a model is made of, remembered so that a plan's end can be compared with its beginning, and put back by force
where a pass failed to do so.

Remembered are objects, not bytes (see contents.py for those): which attributes, submodules, parameters and hooks every
part has. A pass may free a Parameter's storage, so nothing here holds on to that.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

PARTS = ("talker", "frames", "codec")
"""attributes of a Runtime that passes replace or patch"""


def modules_of(model: Any) -> dict[str, nn.Module]:
    """The modules that hold a Runtime's weights: "talker", and "codec" for `codec.model`."""
    found: dict[str, nn.Module] = {}
    for name in ("talker", "codec"):
        part = getattr(model, name, None)
        module = part if isinstance(part, nn.Module) else getattr(part, "model", None)
        if isinstance(module, nn.Module):
            found[name] = module
    return found


def state_keys(model: Any) -> tuple[str, ...]:
    """Keys of the state_dicts of all modules, each after the module's name and a dot."""
    return tuple(f"{name}.{key}" for name, module in modules_of(model).items() for key in module.state_dict())


def parameters_of(model: Any) -> dict[str, Tensor]:
    """Every parameter and buffer by such a key; tied ones under each of theirs."""
    found: dict[str, Tensor] = {}
    for name, module in modules_of(model).items():
        found |= {f"{name}.{key}": p for key, p in module.named_parameters(remove_duplicate=False)}
        found |= {f"{name}.{key}": b for key, b in module.named_buffers(remove_duplicate=False)}
    return found


Layout = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]


def layout(tensor: Tensor) -> Layout:
    """How a tensor's bytes are to be read."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def has_storage(tensor: Tensor) -> bool:
    """Whether all of its bytes are there: a pass may have freed them, or moved them to the meta device."""
    if tensor.device.type == "meta" or not tensor.numel():
        return False
    last = tensor.storage_offset() + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


class Structure:
    """The parts of a model at one moment."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._parts = [(where, part, type(part), _contents(part)) for where, part in _parts(model)]
        self._weights = {key: (tensor, _mark(tensor)) for key, tensor in parameters_of(model).items()}

    def parameters(self) -> dict[str, Tensor]:
        """Every parameter that has a storage: what Runtime.reload_weights can read again."""
        return {key: t for key, (t, _) in self._weights.items() if isinstance(t, nn.Parameter) and has_storage(t)}

    def tables(self) -> dict[str, Tensor]:
        """Buffers, and tensors that are plain attributes of parts: derived from the weights when they were loaded."""
        found = {key: t for key, (t, _) in self._weights.items() if not isinstance(t, nn.Parameter)}
        for where, _, _, entries in self._parts:
            found |= {f"{where}.{name}": value for name, (value, _) in entries.items() if isinstance(value, Tensor)}
        return {name: tensor for name, tensor in found.items() if has_storage(tensor)}

    def differences(self) -> list[str]:
        """Where the model's parts are not what they were, in words."""
        found = []
        for where, part, kind, before in self._parts:
            values = vars(part)
            if type(part) is not kind:
                found.append(f"the class of {where}")
            for name, entry in before.items():
                if not _unchanged(entry, values.get(name, _ABSENT)) and name not in _CHANGING:
                    found.append(f"{where}.{name}")
            found += [f"{where}.{name}" for name in values if name not in before and name not in _CHANGING]
            if _COUNTER in before and not _counted_on(before[_COUNTER][0], values.get(_COUNTER)):
                found.append(f"{where}.{_COUNTER}")
        return found

    def put_back(self) -> None:
        """Gives every part the attributes, submodules, parameters and hooks that it had.

        Slots are not numbered anew: somebody may still know an old number."""
        for _, part, kind, before in self._parts:
            values = vars(part)
            if type(part) is not kind:
                part.__class__ = kind
            for name in [name for name in values if name not in before]:
                del values[name]
            for name, (value, items) in before.items():
                if items is not None and not _unchanged((value, items), value):
                    value.clear()
                    value.update(items)
                if name != _COUNTER or not _counted_on(value, values.get(name)):
                    values[name] = value
        for tensor, mark in self._weights.values():
            if tensor.requires_grad != mark[-1]:
                tensor.requires_grad_(mark[-1])

    def touched_weights(self) -> list[str]:
        """Keys of parameters and buffers whose storage was replaced, or written to with torch's knowledge."""
        return [key for key, (tensor, mark) in self._weights.items() if _mark(tensor) != mark]


Entry = tuple[Any, dict[Any, Any] | None]
_ABSENT = object()
_EMPTY: dict[Any, Any] = {}
_COUNTER = "_next_slot"
_CHANGING = (_COUNTER, "_predictor_cache", "_made_pad", "_probes")
"""change while the model speaks; put back all the same, for their type may belong to the pass that made them"""


def _parts(model: Any) -> Iterator[tuple[str, Any]]:
    others = [("model", model), *((name, getattr(model, name, None)) for name in PARTS)]
    for name, part in others:
        if not isinstance(part, nn.Module) and hasattr(part, "__dict__"):
            yield name, part
            picker = vars(part).get("picker")
            if hasattr(picker, "__dict__"):
                yield f"{name}.picker", picker
    for name, module in modules_of(model).items():
        for path, child in module.named_modules():
            yield f"{name}.{path}" if path else name, child
            rotary = vars(child).get("rotary")
            if rotary is not None:
                yield f"{name}.{path}.rotary", rotary


def _contents(part: Any) -> dict[str, Entry]:
    return {name: _entry(value) for name, value in vars(part).items()}


def _entry(value: Any) -> Entry:
    """A value, and the items of a dict that belongs to the part."""
    if not isinstance(value, dict):
        return value, None
    return value, dict(value) if value else _EMPTY


def _counted_on(before: Any, now: Any) -> bool:
    return type(now) is type(before) and now >= before


def _unchanged(entry: Entry, now: Any) -> bool:
    old, items = entry
    if old is not now:
        return False
    if items is None or (not items and not now):
        return True
    return list(items) == list(now) and all(items[key] is now[key] for key in items)


def _mark(tensor: Tensor) -> tuple[Any, ...]:
    version = None if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version, layout(tensor), tensor.requires_grad
