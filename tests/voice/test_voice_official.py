"""Saved prompts of the official package: every form that is read, and pickles that ask for more."""

import io
import pickle
import struct
import sys
import types
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from qwen3tts.errors import MAX_FOREIGN, VoiceError, shortened
from qwen3tts.voice.voice import Voice

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from damaged_contents import misnamed

MODULE = "qwen_tts.inference.qwen3_tts_model"


@pytest.fixture
def item_class(monkeypatch):
    """The official class by name, as a pickle refers to it. The package itself is not needed, and not there to read."""

    @dataclass
    class VoiceClonePromptItem:
        ref_code: object
        ref_spk_embedding: object
        x_vector_only_mode: bool
        icl_mode: bool
        ref_text: str | None = None

    VoiceClonePromptItem.__module__, VoiceClonePromptItem.__qualname__ = MODULE, "VoiceClonePromptItem"
    for depth in range(1, 4):
        monkeypatch.setitem(sys.modules, ".".join(MODULE.split(".")[:depth]), types.ModuleType("stand-in"))
    sys.modules[MODULE].VoiceClonePromptItem = VoiceClonePromptItem
    return VoiceClonePromptItem


@pytest.fixture
def items(item_class, seed):
    """One with a recording, its codes a view of a larger tensor as the official encoder returns them; one without."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 2048, (32, 9), generator=generator)[:16].transpose(0, 1)[:7]
    first, second = torch.randn(2, 64, generator=generator)
    return [item_class(codes, first, False, True, " What wäs said. "), item_class(None, second, True, False, "")]


def expected(items):
    return [
        Voice.from_reference(items[0].ref_spk_embedding.numpy(), items[0].ref_code.numpy(), items[0].ref_text),
        Voice.from_x_vector(items[1].ref_spk_embedding.numpy()),
    ]


@pytest.mark.parametrize("form", ["list", "demo", "dict with transcripts"])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_reads_all_forms(tmp_path, items, form, protocol):
    contents = {
        "list": items,
        "demo": {"items": [asdict(item) for item in items]},
        "dict with transcripts": {key: [asdict(item)[key] for item in items] for key in asdict(items[0])},
    }[form]
    path = tmp_path / "anna.pt"
    torch.save(contents, path, pickle_protocol=protocol)
    assert Voice.load_all(path) == expected(items)
    assert [voice.name for voice in Voice.load_all(path)] == ["anna", "anna"]
    with pytest.raises(VoiceError, match="holds 2 voices"):
        Voice.load(path)
    torch.save(items[0], path, pickle_protocol=protocol)
    assert Voice.load(path) == expected(items)[0]


def test_dtypes(tmp_path, items):
    for item, embedding, codes in ((torch.bfloat16, torch.float32, torch.int32), (torch.float16, None, torch.int16)):
        del embedding
        items[0].ref_spk_embedding = items[0].ref_spk_embedding.to(item)
        items[0].ref_code = items[0].ref_code.to(codes)
        torch.save(items[:1], tmp_path / "x.pt")
        voice = Voice.load(tmp_path / "x.pt")
        np.testing.assert_array_equal(voice.x_vector, items[0].ref_spk_embedding.float().numpy())
        np.testing.assert_array_equal(voice.ref_codes, items[0].ref_code.numpy())


def test_prompts_of_the_drop_in_class(tmp_path, items):
    from qwen3tts import VoiceClonePromptItem

    torch.save([VoiceClonePromptItem(**asdict(item)) for item in items], tmp_path / "x.pt")
    assert Voice.load_all(tmp_path / "x.pt") == expected(items)


def test_the_dict_form_has_no_transcripts(tmp_path, items):
    columns = {key: [asdict(item)[key] for item in items] for key in asdict(items[0]) if key != "ref_text"}
    torch.save(columns, tmp_path / "x.pt")
    with pytest.raises(VoiceError, match="voice 0: .*the dict form of a prompt loses the transcript"):
        Voice.load_all(tmp_path / "x.pt")
    torch.save({key: column[1:] for key, column in columns.items()}, tmp_path / "x.pt")
    assert Voice.load(tmp_path / "x.pt") == expected(items)[1]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"icl_mode": False}, "are both false"),
        ({"x_vector_only_mode": 1}, "x_vector_only_mode is 1"),
        ({"ref_text": None}, "there is no ref_text"),
        ({"ref_text": "  "}, "transcript of the recording"),
        ({"ref_code": None}, "ref_code is of type NoneType, expected a tensor"),
        ({"ref_spk_embedding": [1.0]}, "ref_spk_embedding is of type list, expected a tensor"),
        ({"ref_spk_embedding": torch.full((64,), torch.nan)}, "64 of 64 values that are not finite"),
        ({"ref_spk_embedding": torch.ones(2, 32)}, r"shape \[enc_dim\], not \[2, 32\]"),
        ({"ref_spk_embedding": torch.ones(0)}, r"has the shape \[0\], which is empty"),
        ({"ref_code": torch.ones(3, 15, dtype=torch.int64)}, r"not \[3, 15\]"),
        ({"ref_code": torch.ones(3, 16)}, "not dtype float32"),
        ({"ref_code": torch.full((3, 16), -1)}, r"code \[0, 0\] is -1"),
        ({"ref_code": torch.ones(1, 16, dtype=torch.int64).expand(10**9, 16)}, "tensors take more than 16 MiB"),
        ({"more": 1}, "unknown field 'more'"),
    ],
)
def test_refuses_items(tmp_path, items, changes, match):
    for name, value in changes.items():
        setattr(items[0], name, value)
    torch.save(items[:1], tmp_path / "x.pt")
    with pytest.raises(VoiceError, match=match) as caught:
        Voice.load(tmp_path / "x.pt")
    assert str(tmp_path / "x.pt") in str(caught.value)


@pytest.mark.parametrize("contents", [[], [5], {"items": 3}, {"a": 1}, "text", None, torch.ones(3), [[]]], ids=repr)
def test_refuses_other_contents(tmp_path, contents):
    torch.save(contents, tmp_path / "x.pt")
    with pytest.raises(VoiceError, match="no saved prompt of the official package"):
        Voice.load(tmp_path / "x.pt")


def rewritten(source, **replaced):
    """The archive at `source` with other contents of some entries: bytes, or None to leave one out."""
    out = io.BytesIO()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            name = entry.filename.partition("/")[2]
            data = replaced.get(name, old.read(entry))
            if data is not None:
                new.writestr(entry.filename, data)
    return out.getvalue()


class Evil:
    """Pickles as a call."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    "program",
    [
        Evil(exec, "raise SystemExit(99)"),
        Evil(bytearray, 10**11),
        Evil(getattr, "text", "upper"),
        Evil(torch.zeros, 10**11),
        [Evil(type, "x", (), {})],
    ],
    ids=lambda evil: str(getattr(evil, "call", "nested")),
)
def test_a_pickle_calls_nothing(tmp_path, items, program, protocol):
    path = tmp_path / "x.pt"
    torch.save(items, path)
    path.write_bytes(rewritten(path, **{"data.pkl": pickle.dumps(program, protocol)}))
    with pytest.raises(VoiceError, match="asks for .*, which a prompt does not need"):
        Voice.load_all(path)


TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x08tQ"


@pytest.mark.parametrize(
    ("program", "match"),
    [
        (b"", "pickle is damaged"),
        (b".", "pickle is damaged"),
        (b"\x80\x02]", "pickle is damaged"),
        (b"\x80\x02N" + b"r" + struct.pack("<I", 2**31) + b".", "instruction LONG_BINPUT"),
        (b"\x96" + struct.pack("<Q", 2**40) + b".", "pickle is damaged|instruction BYTEARRAY8"),
        (b"\x80\x02X\xff\xff\xff\x7f.", "pickle is damaged"),
        (b"\x80\x02K\x01Q.", "pickle is damaged"),
        (TENSOR + b"(" + STORAGE + b"K\x00J\xff\xff\xff\xff\x85K\x01\x85tR.", "a list|_View|item is expected"),
        (TENSOR + b"N}b.", "pickle is damaged|item is expected"),
        (b"((((((((tttttttt.", "pickle is damaged|item is expected"),
        (b"N" * (257 << 10) + b".", "larger than 262144 bytes"),
    ],
)
def test_hostile_programs(tmp_path, items, program, match):
    path = tmp_path / "x.pt"
    torch.save(items, path)
    path.write_bytes(rewritten(path, **{"data.pkl": program}))
    with pytest.raises(VoiceError, match=match):
        Voice.load_all(path)


def test_hostile_archives(tmp_path, items):
    path = tmp_path / "x.pt"
    torch.save(items, path)
    original = path.read_bytes()
    path.write_bytes(rewritten(io.BytesIO(original), **{"data/0": None}))
    with pytest.raises(VoiceError, match="data/0' is missing"):
        Voice.load_all(path)
    path.write_bytes(rewritten(io.BytesIO(original), **{"data/0": b"\0" * 8}))
    with pytest.raises(VoiceError, match="reaches past its 8 bytes"):
        Voice.load_all(path)
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", b"N" * (200 << 20))
    path.write_bytes(bomb.getvalue())
    with pytest.raises(VoiceError, match="is compressed, which torch.save never does"):
        Voice.load_all(path)
    crowd = io.BytesIO()
    with zipfile.ZipFile(crowd, "w") as archive:
        for i in range(5000):
            archive.writestr(f"x/{i}", b"")
    path.write_bytes(crowd.getvalue())
    with pytest.raises(VoiceError, match="more than 4096 entries"):
        Voice.load_all(path)
    path.write_bytes(misnamed(original, b"/data/0"))
    with pytest.raises(VoiceError, match="data/0' is damaged \\(File name in directory") as caught:
        Voice.load_all(path)
    assert len(str(caught.value)) < len(str(path)) + 400
    torch.save(items, path, _use_new_zipfile_serialization=False)
    with pytest.raises(VoiceError, match="old-style pickle"):
        Voice.load_all(path)


def test_damaged_archives_are_refused_or_read_alike(tmp_path, items, seed):
    """Cut anywhere, or a byte changed anywhere."""
    path, rng = tmp_path / "x.pt", np.random.default_rng(seed)
    torch.save(items, path)
    original, wanted = path.read_bytes(), expected(items)
    for _ in range(150):
        data = bytearray(original)
        if rng.random() < 0.4:
            del data[rng.integers(len(data)) :]
        else:
            data[rng.integers(len(data))] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        try:
            voices, message = Voice.load_all(path), None
        except VoiceError as error:
            voices, message = None, str(error)
        if message is None:
            assert voices == wanted, seed  # bytes that mean nothing, such as time stamps
        else:
            assert str(path) in message


def _nested_key() -> bytes:
    return b"\x80\x02}N" + b"\x85" * 200_000 + b"Ns."


def _exponential_key() -> bytes:
    program = b"\x80\x02}N\x85q\0"
    for i in range(40):
        program += b"h" + bytes([i]) + b"\x86q" + bytes([i + 1])
    return program + b"Ns."


@pytest.mark.parametrize("program", [_nested_key(), _exponential_key()])
def test_keys_that_cannot_be_hashed_are_not(tmp_path, program):
    path = tmp_path / "keys.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", program)
    with pytest.raises(VoiceError, match="key that is no string"):
        Voice.load(path)


def test_what_other_libraries_say_is_shortened():
    assert shortened(ValueError(" a short one ")) == "a short one"
    for length in (MAX_FOREIGN, MAX_FOREIGN + 1, 300_000):
        said = shortened(ValueError("b" * length))
        assert (len(said), said.endswith("...")) == (MAX_FOREIGN, length > MAX_FOREIGN)
