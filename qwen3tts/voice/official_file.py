"""Saved prompts of the official package: torch.save of VoiceClonePromptItems, without running what a pickle says.

What a file may hold: a list of items or one item; {"items": [an item's fields, ...]}, as the official demo writes; or
the dict of lists that the model's generate() takes, which has no transcripts and so serves for x-vectors alone.

A pickle is a program that may call anything. Here it may name the item's class, torch's storages and the function that
puts a tensor on one, nothing else; and all of them are replaced by the stand-ins below, which only collect. Tensors are
made afterwards, from what was collected.
"""

import io
import math
import pickle
import pickletools
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from qwen3tts.errors import VoiceError, shortened
from qwen3tts.voice.json_file import uses_reference
from qwen3tts.voice.record import VoiceRecord, make_record

FIELDS = ("ref_code", "ref_spk_embedding", "x_vector_only_mode", "icl_mode", "ref_text")
ITEM_MODULES = ("qwen_tts.inference.qwen3_tts_model", "qwen3tts.official.clone")
"""the official class, and this package's drop-in for it"""
STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
}
MAX_PICKLE_BYTES = 256 << 10
MAX_ENTRIES = 4096
MAX_TENSOR_BYTES = 16 << 20
MAX_ITEMS = 1000
MAX_DIMENSIONS, MAX_SIZE = 8, 1 << 32
# What torch.save writes; without those that can ask for memory out of proportion to the file.
OPCODES = frozenset(
    (
        "PROTO", "FRAME", "STOP", "MARK", "POP", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM",
        "SETITEMS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "NONE", "NEWTRUE", "NEWFALSE",
        "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINGET",
        "LONG_BINGET", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GLOBAL", "STACK_GLOBAL", "NEWOBJ", "REDUCE",
        "BUILD", "BINPERSID",
    )
)  # fmt: skip
MAX_MEMO = 100_000


class _Refused(Exception):
    """Says what about a file is refused."""


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: Any
    key: Any


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor as the pickle describes it; nothing about it is checked yet."""

    storage: Any
    offset: Any
    size: Any
    stride: Any


def parse(data: bytes, path: Path) -> list[VoiceRecord]:
    """The voices of a file, in order. Raises VoiceError."""
    try:
        root, archive = _load(data)
        fields = _items(root)
    except _Refused as error:
        raise VoiceError(f"{path}: no saved prompt of the official package: {error}.") from None
    records = []
    for index, item in enumerate(fields):
        where = f"{path}: voice {index}" if len(fields) > 1 else str(path)
        try:
            records.append(_record(item, archive, path))
        except (VoiceError, _Refused) as error:
            raise VoiceError(f"{where}: {str(error).removeprefix(f'{path}: ')}") from None
    return records


def _record(item: dict[str, Any], archive: "_Archive", path: Path) -> VoiceRecord:
    embedding = archive.tensor("ref_spk_embedding", item["ref_spk_embedding"])
    codes, text = None, None
    if uses_reference(item["x_vector_only_mode"], item["icl_mode"], path):
        codes, text = archive.tensor("ref_code", item["ref_code"]).numpy(), item.get("ref_text")
        if text is None:
            raise _Refused(
                "icl_mode is true, but there is no ref_text: the dict form of a prompt loses the transcript. Save the "
                "list that create_voice_clone_prompt returned"
            )
    return make_record(embedding.float().numpy(), codes, text)


def _items(root: Any) -> list[dict[str, Any]]:
    """The fields of each item, whichever of the forms it is."""
    if isinstance(root, dict) and "items" in root:
        root = root["items"]
    if isinstance(root, dict) and isinstance(root.get("ref_spk_embedding"), list):
        root = _columns(root)
    items = root if isinstance(root, list) else [root]
    if not 1 <= len(items) <= MAX_ITEMS:
        raise _Refused(f"it holds {len(items)} items, expected 1 to {MAX_ITEMS}")
    found = []
    for item in items:
        fields = item if isinstance(item, dict) else getattr(item, "fields", None)
        if not isinstance(fields, dict):
            raise _Refused(f"it holds a {type(item).__name__} where an item is expected")
        unknown = [str(key)[:40] for key in fields if key not in FIELDS]
        missing = [key for key in FIELDS[:4] if key not in fields]
        if unknown or missing:
            raise _Refused(f"an item has {'the unknown' if unknown else 'no'} field {(unknown or missing)[0]!r}")
        found.append(fields)
    return found


def _columns(root: dict[str, Any]) -> list[dict[str, Any]]:
    """{field: list} -> fields of each item."""
    rows = len(root["ref_spk_embedding"])
    for key, column in root.items():
        if not isinstance(column, list) or len(column) != rows:
            raise _Refused(f"{str(key)[:40]!r} is no list of {rows}, as many as ref_spk_embedding")
    return [{key: column[i] for key, column in root.items()} for i in range(rows)]


# ------------------------------------------------------------------ the container


def _load(data: bytes) -> tuple[Any, "_Archive"]:
    archive = _Archive(data)
    program = archive.read("data.pkl", MAX_PICKLE_BYTES)
    _check_opcodes(program)
    try:
        return _Unpickler(io.BytesIO(program)).load(), archive
    except _Refused:
        raise
    except Exception as error:  # a hostile pickle can make any operation fail
        raise _Refused(f"its pickle is damaged ({type(error).__name__}: {str(error)[:80]})") from None


class _Archive:
    """The zip archive of torch.save: FOLDER/data.pkl and FOLDER/data/KEY, nothing compressed."""

    def __init__(self, data: bytes) -> None:
        if data.count(b"PK\1\2") > MAX_ENTRIES:  # before each of them becomes an object
            raise _Refused(f"the archive has more than {MAX_ENTRIES} entries")
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
            raise _Refused(f"the zip archive is damaged or cut short ({shortened(error)})") from None
        for entry in self._zip.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > len(data):
                raise _Refused(f"its entry {entry.filename[:60]!r} is compressed, which torch.save never does")
        pickles = [name for name in self._zip.namelist() if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise _Refused(f"the archive has {len(pickles)} entries data.pkl, expected one")
        self._folder, self._taken = pickles[0].removesuffix("data.pkl"), 0

    def read(self, name: str, limit: int) -> bytes:
        """The bytes of an entry."""
        name = self._folder + name
        try:
            if self._zip.getinfo(name).file_size > limit:
                raise _Refused(f"its entry {name[:60]!r} is larger than {limit} bytes")
            return self._zip.read(name)
        except KeyError:
            raise _Refused(f"its entry {name[:60]!r} is missing") from None
        except (zipfile.BadZipFile, ValueError, OSError, EOFError, RuntimeError, NotImplementedError) as error:
            raise _Refused(f"its entry {name[:60]!r} is damaged ({shortened(error)})") from None

    def tensor(self, field: str, view: object) -> torch.Tensor:
        """A copy of what a view shows. All the views of a file together may take MAX_TENSOR_BYTES."""
        if not isinstance(view, _View) or not isinstance(view.storage, _Storage):
            raise _Refused(f"{field} is of type {type(view).__name__}, expected a tensor")
        dtype, offset, size, stride = view.storage.dtype, view.offset, view.size, view.stride
        if not isinstance(dtype, torch.dtype) or not isinstance(size, tuple) or not isinstance(stride, tuple):
            raise _Refused(f"{field} is a damaged tensor")
        whole = all(type(n) is int and 0 <= n < MAX_SIZE for n in (offset, *size, *stride))
        if not whole or not len(size) == len(stride) <= MAX_DIMENSIONS:
            raise _Refused(f"{field} is a tensor of a damaged shape")
        elements = math.prod(size)
        self._taken += elements * dtype.itemsize
        if self._taken > MAX_TENSOR_BYTES:
            raise _Refused(f"its tensors take more than {MAX_TENSOR_BYTES >> 20} MiB")
        data = self.read(f"data/{view.storage.key}", MAX_TENSOR_BYTES)
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if elements == 0 or (last + 1) * dtype.itemsize > len(data):
            raise _Refused(f"{field} has the shape {list(size)}, which is empty or reaches past its {len(data)} bytes")
        values = torch.frombuffer(bytearray(data), dtype=dtype, count=len(data) // dtype.itemsize)
        return values.as_strided(size, stride, offset).clone()


def _check_opcodes(program: bytes) -> None:
    try:
        for opcode, argument, _ in pickletools.genops(program):
            if opcode.name not in OPCODES or ("PUT" in opcode.name and (argument or 0) > MAX_MEMO):
                raise _Refused(f"its pickle has the instruction {opcode.name}, which torch.save does not write")
    except ValueError as error:
        raise _Refused(f"its pickle is damaged ({shortened(error)})") from None


_PurePython: Any = vars(pickle)["_Unpickler"]


class _Unpickler(_PurePython):  # type: ignore[misc]
    """Finds names in a table of stand-ins, made anew for each file, since a pickle can change what it is given.

    The pure Python unpickler: its SETITEM can look at a key before it is hashed. Hashing a tuple nested a hundred
    thousand times overflows the C stack, and one that shares its parts takes time exponential in the file's size."""

    dispatch: ClassVar[dict[int, Any]] = dict(_PurePython.dispatch)

    def _load_setitem(self) -> None:
        self._check_keys(self.stack[-2:-1])
        super().load_setitem()

    def _load_setitems(self) -> None:
        self._check_keys(self.stack[::2])
        super().load_setitems()

    @staticmethod
    def _check_keys(keys: list[Any]) -> None:
        if not all(type(key) is str for key in keys):
            raise _Refused("its pickle has a dictionary key that is no string")

    dispatch[pickle.SETITEM[0]] = _load_setitem
    dispatch[pickle.SETITEMS[0]] = _load_setitems

    def __init__(self, program: io.BytesIO) -> None:
        super().__init__(program)

        class Item:
            """Stands for VoiceClonePromptItem."""

            def __setstate__(self, state: Any) -> None:
                self.fields = state

        self._names: dict[tuple[str, str], Any] = {
            **{(module, "VoiceClonePromptItem"): Item for module in ITEM_MODULES},
            ("torch._utils", "_rebuild_tensor_v2"): lambda storage, offset, size, stride, *_: _View(
                storage, offset, size, stride
            ),
            ("collections", "OrderedDict"): lambda: None,  # a tensor's backward hooks: none
            **{("torch", name): (lambda dtype=dtype: dtype) for name, dtype in STORAGES.items()},
        }

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for a name."""
        if (module, name) not in self._names:
            raise _Refused(f"its pickle asks for {f'{module}.{name}'[:80]}, which a prompt does not need")
        return self._names[module, name]

    def persistent_load(self, reference: Any) -> _Storage:
        """("storage", storage class, key, device, elements) -> which entry its bytes are."""
        kind, storage, key = reference[:3]
        if kind != "storage" or not isinstance(key, str):
            raise _Refused("its pickle refers to something other than a tensor's storage")
        return _Storage(storage(), key)
