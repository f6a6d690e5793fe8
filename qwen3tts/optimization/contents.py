"""The bytes of a model, remembered so that a change behind torch's back is noticed and can be put back.

Weights are remembered as checksums, because the checkpoint has their bytes. Tables that were derived from them when the
model was loaded (rotary angles, codebook entries, activation parameters) and buffers are kept as copies on the host.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from qwen3tts.errors import OptimizationError
from qwen3tts.optimization.structure import Structure, has_storage, layout

COLUMNS = 8191
"""prime: elements a power of two apart are not added up"""


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """A number for the bytes of each tensor, computed where it lies at the speed of reading it once. Other bytes, or
    the same in another order, give another number but for a chance of about 2^-64."""
    by_device: dict[torch.device, dict[int, Tensor]] = {}
    for tensor in tensors.values():
        by_device.setdefault(tensor.device, {})[id(tensor)] = tensor
    found: dict[int, int] = {}
    with torch.inference_mode():
        for device, distinct in by_device.items():
            weights = _weights(device)
            sums = torch.stack([_checksum(tensor, weights) for tensor in distinct.values()])
            found.update(zip(distinct, sums.tolist(), strict=True))
    return {name: found[id(tensor)] for name, tensor in tensors.items()}


def _weights(device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(COLUMNS)
    numbers = torch.randint(-(2**62), 2**62, (COLUMNS,), generator=generator)
    return (2 * numbers + 1).to(device)


def _checksum(tensor: Tensor, weights: Tensor) -> Tensor:
    """Sums of the columns of its 64-bit words, mixed so that the highest bits count as well: int64 []."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    data = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)
    if data.numel() % 8 or data.storage_offset() % 8:
        data = torch.nn.functional.pad(data, (0, -data.numel() % 8)).clone()
    words = data.view(torch.int64)
    full = words.numel() // COLUMNS * COLUMNS
    columns = words[:full].view(-1, COLUMNS).sum(0)
    columns[: words.numel() - full] += words[full:]
    mixed = columns * weights
    return ((mixed ^ (mixed >> 32)) * weights.flip(0)).sum()


class Snapshot:
    """A model at one moment: its parts, which are objects, and its bytes."""

    def __init__(self, structure: Structure) -> None:
        self.structure, self.model = structure, structure.model
        self._weights = structure.parameters()
        self._tables = structure.tables()
        self._layouts = {name: layout(tensor) for name, tensor in self._all().items()}
        self._storages = {name: tensor.data_ptr() for name, tensor in self._all().items()}
        self._sums = checksums(self._all())
        self._copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._tables.items()}

    def _all(self) -> dict[str, Tensor]:
        return self._weights | self._tables

    def changed(self) -> list[str]:
        """What is not as it was, in words; parts first."""
        return self.structure.differences() + self._changed(self._all())

    def _changed(self, names: Iterable[str]) -> list[str]:
        """Names of tensors that have other bytes, another shape or layout, or no storage."""
        tensors = self._all()
        present = {
            name: tensors[name]
            for name in names
            if layout(tensors[name]) == self._layouts[name] and has_storage(tensors[name])
        }
        sums = checksums(present)
        return [name for name in names if sums.get(name) != self._sums[name]]

    def put_back(self) -> list[Exception]:
        """Gives the model its parts and bytes, whatever was done to them. Returns what could not be done."""
        errors: list[Exception] = []
        for step in (self.structure.put_back, self._put_back_tables, self._put_back_weights):
            try:
                step()
            except Exception as error:
                errors.append(error)
        return errors

    def _put_back_tables(self) -> None:
        with torch.inference_mode():
            for name in self._changed(self._tables):
                tensor, (shape, strides, dtype, device) = self._tables[name], self._layouts[name]
                if self._moved(name, tensor):
                    tensor.data = torch.empty_strided(shape, strides, dtype=dtype, device=device)
                tensor.copy_(self._copies[name])

    def _put_back_weights(self) -> None:
        changed = self._changed(self._weights)
        if not changed:
            return
        for name in changed:
            tensor = self._weights[name]
            if self._moved(name, tensor):
                tensor.data = tensor.data.new_empty(0)  # it gets a storage of its own when it is read
        self.model.reload_weights(changed)
        left = self._changed(changed)
        if left:
            raise OptimizationError(f"{', '.join(left[:3])}: the checkpoint has other values than the model had")

    def _moved(self, name: str, tensor: Tensor) -> bool:
        """Whether its bytes lie elsewhere, where another tensor's may be, or are read in another way."""
        kept = layout(tensor) == self._layouts[name] and has_storage(tensor)
        return not kept or tensor.data_ptr() != self._storages[name]
