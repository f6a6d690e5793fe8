"""What a model is made of, remembered so that a plan's end can be compared with its beginning, and put back by force
where a pass failed to do so.

Remembered are objects, not bytes: which attributes, submodules, parameters and hooks every part has. A pass may free a
Parameter's storage, so nothing here holds on to that; bytes come back from the checkpoint (Runtime.reload_weights).
"""

from collections.abc import Iterator
from typing import Any

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


class Structure:
    """The parts of a model at one moment."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._parts = [(where, part, _contents(part)) for where, part in _parts(model)]
        self._weights = {key: (tensor, _mark(tensor)) for key, tensor in parameters_of(model).items()}

    def differences(self) -> list[str]:
        """Where the model's parts are not what they were, in words."""
        found = []
        for where, part, before in self._parts:
            values = vars(part)
            for name, entry in before.items():
                if not _unchanged(entry, values.get(name, _ABSENT)) and name != _SCRATCH and _kept(name, entry):
                    found.append(f"{where}.{name}")
            if len(values) > len(before) or any(name not in before for name in values):
                new = [name for name in values if name not in before and name != _SCRATCH]
                found += [f"{where}.{name}" for name in new if _kept(name, (_ABSENT, None))]
        return found

    def put_back(self) -> None:
        """Gives every part the attributes, submodules, parameters and hooks that it had."""
        for _, part, before in self._parts:
            values = vars(part)
            for name in [name for name in values if name not in before]:
                del values[name]
            for name, (value, items) in before.items():
                if _kept(name, (value, items)):
                    if items is not None and not _unchanged((value, items), value):
                        value.clear()
                        value.update(items)
                    values[name] = value

    def touched_weights(self) -> list[str]:
        """Keys of parameters and buffers whose storage was replaced, or written to with torch's knowledge."""
        return [key for key, (tensor, mark) in self._weights.items() if _mark(tensor) != mark]

    def missing_weights(self) -> list[str]:
        """Keys of parameters and buffers that have another shape, dtype or device now, or no storage."""
        return [
            key
            for key, (tensor, mark) in self._weights.items()
            if _mark(tensor)[2:] != mark[2:] or (mark[0] and not tensor.data_ptr())
        ]


Entry = tuple[Any, dict[Any, Any] | None]
_ABSENT = object()
_EMPTY: dict[Any, Any] = {}
_SCRATCH = "_predictor_cache"
"""changes with every other number of rows; put back, for its type belongs to the pass that made it"""


def _parts(model: Any) -> Iterator[tuple[str, Any]]:
    others = [("model", model), *((name, getattr(model, name, None)) for name in PARTS)]
    for name, part in others:
        if not isinstance(part, nn.Module) and hasattr(part, "__dict__"):
            yield name, part
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


def _kept(name: str, entry: Entry) -> bool:
    """Whether an attribute is structure. Private counters and the table of open rows go on with every request."""
    return not name.startswith("_") or (type(entry[0]) is not int and name != "_rows")


def _unchanged(entry: Entry, now: Any) -> bool:
    old, items = entry
    if old is not now:
        return False
    if items is None or (not items and not now):
        return True
    return list(items) == list(now) and all(items[key] is now[key] for key in items)


def _mark(tensor: Tensor) -> tuple[Any, ...]:
    version = None if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version, tensor.shape, tensor.dtype, tensor.device
