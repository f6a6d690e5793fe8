"""Tensors of a checkpoint, from a single safetensors file or from shards."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import torch

from qwen3tts.checkpoint.json_object import read_json
from qwen3tts.checkpoint.layout import KeyShape
from qwen3tts.checkpoint.safetensors_file import SafetensorsFile, TensorEntry
from qwen3tts.errors import ConfigError, WeightsError, nearest

logger = logging.getLogger(__name__)

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
STORED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What a tensor of the model may be stored in."""
SHOWN = 5
"""How many keys an error lists."""


class TensorReader:
    """All tensors under their keys, each a view of a memory-mapped file. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        """Opens model.safetensors, or the shards of model.safetensors.index.json, and checks every header.

        Raises WeightsError if a file is missing, damaged or not safetensors; no tensor is read.
        """
        self.folder = folder
        paths = _files(folder)
        self._files: dict[str, SafetensorsFile] = {}
        self.shard_count = len(paths)
        for path, keys in paths.items():
            file = SafetensorsFile(path)
            missing = [key for key in keys if key not in file.entries]
            if missing:
                raise WeightsError(f"{path} lacks {_listed(missing)}, which {INDEX_FILE} says it has")
            twice = [key for key in file.entries if key in self._files]
            if twice:
                raise WeightsError(f"{path} has {_listed(twice)}, which {self._files[twice[0]].path.name} has too")
            self._files |= dict.fromkeys(file.entries, file)

    def _entry(self, key: str) -> TensorEntry:
        if key not in self._files:
            raise WeightsError(f"{self.folder} has no tensor {key!r}.{nearest(key, self._files)}")
        return self._files[key].entries[key]

    def keys(self) -> list[str]:
        """Keys in the order of the files."""
        return list(self._files)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self._entry(key).shape

    def dtype(self, key: str) -> torch.dtype:
        """Stored dtype of a tensor."""
        return self._entry(key).dtype

    def nbytes(self, key: str) -> int:
        """Stored bytes of a tensor."""
        entry = self._entry(key)
        return entry.end - entry.start

    def read(self, key: str) -> torch.Tensor:
        """The tensor in its stored dtype, on the CPU: a view of the file, to be read only."""
        self._entry(key)
        return self._files[key].read(key)

    def forget(self, key: str) -> None:
        """Gives the memory of a tensor's pages back; it can be read again."""
        self._entry(key)
        self._files[key].forget(key)

    def close(self) -> None:
        """Lets go of the files; a mapping ends with the last tensor that views it."""
        self._files = {}

    def __enter__(self) -> "TensorReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _files(folder: Path) -> dict[Path, list[str]]:
    """Weight files -> the keys that the index says are in them."""
    if (folder / WEIGHTS_FILE).exists():
        return {folder / WEIGHTS_FILE: []}
    if not (folder / INDEX_FILE).exists():
        others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for path in folder.glob(pattern))
        found = f"; found {_listed(others)}, but only safetensors is read" if others else ""
        raise WeightsError(f"{folder} has neither {WEIGHTS_FILE} nor {INDEX_FILE}{found}")
    try:
        weight_map = read_json(folder / INDEX_FILE, INDEX_FILE).section("weight_map")
        result: dict[Path, list[str]] = {}
        for key in weight_map:
            name = weight_map.raw(key, "a file name")
            if not isinstance(name, str) or not _is_plain_name(name):
                raise weight_map.wrong(key, "the name of a .safetensors file in the same folder")
            result.setdefault(folder / name, []).append(key)
    except ConfigError as error:
        raise WeightsError(f"{folder}: {error}") from error
    if not result:
        raise WeightsError(f"{folder / INDEX_FILE} lists no tensors")
    return result


def _is_plain_name(name: str) -> bool:
    """No folders, so that an index cannot point outside the checkpoint."""
    return name.endswith(".safetensors") and not set(name) & set("/\\:\0") and not name.startswith(".")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(repr(name) for name in names[:SHOWN]) + more


def check_layout(reader: TensorReader, expected: Iterable[KeyShape], *, what: str) -> None:
    """Compares the headers with the tensors that the config asks for. `what` names the file in messages.

    Raises WeightsError for missing keys, other shapes and dtypes that are not fp32, bf16 or fp16. Unknown keys are
    logged as a warning.
    """
    wanted = dict(expected)
    found = set(reader)
    unknown = [key for key in reader if key not in wanted]
    missing = [key for key in wanted if key not in found]
    if missing:
        hint = nearest(missing[0], unknown) if len(unknown) <= 2000 else ""
        hint = hint.replace(" Did you mean", " The nearest unknown key is").replace("?", ".")
        raise WeightsError(
            f"{what} lacks {len(missing)} of {len(wanted)} tensors: {_listed(missing)}.{hint} Does the "
            "config belong to these weights?"
        )
    wrong = [
        f"{key} is {list(reader.shape(key))}, expected {list(shape)}"
        for key, shape in wanted.items()
        if reader.shape(key) != shape
    ]
    if wrong:
        raise WeightsError(
            f"{what} has {len(wrong)} tensors of another shape than the config asks for: "
            f"{_listed(wrong)}. Does the config belong to these weights?"
        )
    other = [f"{key} ({reader.dtype(key)})" for key in wanted if reader.dtype(key) not in STORED_DTYPES]
    if other:
        raise WeightsError(
            f"{what} has {len(other)} tensors that are not float32, bfloat16 or float16, so it is "
            f"quantized or damaged: {_listed(other)}"
        )
    if unknown:
        logger.warning("%s has %d unknown tensors, which are not used: %s", what, len(unknown), _listed(unknown))


DtypeRule = Callable[[str, torch.dtype], torch.dtype]
"""(key, stored dtype) -> dtype to load it in."""
