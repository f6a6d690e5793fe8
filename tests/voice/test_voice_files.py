"""Voice files in JSON: what is read and written, and every kind of file that is refused."""

import json
import os

import numpy as np
import pytest
import safetensors.numpy

from qwen3tts.errors import VoiceError
from qwen3tts.voice.files import MAX_FILE_BYTES
from qwen3tts.voice.json_file import MAX_JSON_BYTES
from qwen3tts.voice.voice import Voice

VALUES = np.random.default_rng(7).standard_normal(64).astype(np.float32)
CODES = np.random.default_rng(8).integers(0, 2048, (6, 16)).tolist()
ICL = {"x_vector_only_mode": False, "icl_mode": True}
RECORD = {
    "speaker_embedding": VALUES.tolist(),
    "x_vector_only_mode": True,
    "icl_mode": False,
    "ref_text": None,
    "ref_codes": None,
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "anna.json"


def write(path, **changes):
    path.write_text(json.dumps(RECORD | changes), encoding="utf-8")


@pytest.mark.parametrize("changes", [
    {},
    {"speaker_embedding": [VALUES.tolist()]},
    {"format": "qwen3tts-voice", "version": 1, "fingerprint": "ab12"},
    {"ref_text": "What was said.", "ref_codes": [[1] * 16]},
])  # fmt: skip
def test_reads(path, changes):
    write(path, **changes)
    for argument in (path, str(path)):
        voice = Voice.load(argument)
        np.testing.assert_array_equal(voice.x_vector, VALUES)
        assert voice.name == "anna"
        assert voice.kind == "x_vector"


def test_reads_whole_numbers_and_few_keys(path):
    path.write_text('{"speaker_embedding": [1, -2.5, 3e-2], "x_vector_only_mode": true, "icl_mode": false}')
    np.testing.assert_array_equal(Voice.load(path).x_vector, np.array([1, -2.5, 0.03], np.float32))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"icl_mode": True}, "x_vector_only_mode and icl_mode are both true. true and false use"),
        ({"x_vector_only_mode": False}, "x_vector_only_mode and icl_mode are both false"),
        ({"x_vector_only_mode": 0, "icl_mode": True}, "x_vector_only_mode is 0, expected true"),
        (ICL, "icl_mode is true, but ref_text is missing or null"),
        (ICL | {"ref_codes": CODES}, "but ref_text is missing"),
        (ICL | {"ref_text": "Hi."}, "but ref_codes is missing"),
        (ICL | {"ref_text": " ", "ref_codes": CODES}, "transcript of the recording cannot be used"),
        (ICL | {"ref_text": "Hi.", "ref_codes": []}, "ref_codes is a list of 0 items"),
        (ICL | {"ref_text": "Hi.", "ref_codes": [1] * 16}, r"ref_codes\[0\] is 1, expected a list of 16"),
        (ICL | {"ref_text": "Hi.", "ref_codes": [[1] * 16, [1] * 15]}, r"ref_codes\[1\] is a list of 15 items"),
        (ICL | {"ref_text": "Hi.", "ref_codes": [[1.0] * 16]}, r"ref_codes\[0\]\[0\] is 1.0, expected a whole"),
        (ICL | {"ref_text": "Hi.", "ref_codes": [[True] * 16]}, r"ref_codes\[0\]\[0\] is true"),
        (ICL | {"ref_text": "Hi.", "ref_codes": [[0] * 15 + [-1]]}, r"ref_codes\[0\]\[15\] is -1"),
        (ICL | {"ref_text": "Hi.", "ref_codes": [[10**30] * 16]}, r"ref_codes\[0\]\[0\] is 1000"),
        (ICL | {"ref_text": "Hi.", "ref_codes": [[1] * 16] * 7501}, "with 1 to 7500 frames"),
        ({"format": "other"}, 'format is "other"'),
        ({"version": 2}, "version is 2; this version of qwen3tts reads 1"),
        ({"version": "1"}, 'version is "1"'),
        ({"fingerprint": 5}, "fingerprint is 5, expected a string or null"),
        ({"fingerprint": "a" * 201}, "A fingerprint is a string of 1 to 200"),
        ({"x_vector_only_mode": 1}, "x_vector_only_mode is 1, expected true or false"),
        ({"icl_mode": "false"}, 'icl_mode is "false", expected true or false'),
        ({"icl_mode": None}, "icl_mode is null"),
        ({"ref_text": 5}, "ref_text is 5"),
        ({"ref_codes": "x"}, 'ref_codes is "x"'),
        ({"speaker_embeding": [1.0]}, "unknown key 'speaker_embeding'. Did you mean 'speaker_embedding'"),
        ({"zzz": 1}, "unknown key 'zzz'. A voice file has speaker_embedding, "),
        ({"speaker_embedding": None}, "speaker_embedding is null"),
        ({"speaker_embedding": "AAAA"}, 'speaker_embedding is "AAAA"'),
        ({"speaker_embedding": []}, "speaker_embedding is a list of 0 items"),
        ({"speaker_embedding": [[]]}, "speaker_embedding is a list of 1 items"),
        ({"speaker_embedding": [[1.0], [2.0]]}, "speaker_embedding is a list of 2 items"),
        ({"speaker_embedding": [[[1.0, 2.0]]]}, "speaker_embedding is a list of 1 items"),
        ({"speaker_embedding": [1.0, [2.0]]}, r"speaker_embedding\[1\] is a list"),
        ({"speaker_embedding": [1.0, "2"]}, r'speaker_embedding\[1\] is "2", expected a number'),
        ({"speaker_embedding": [1.0, True]}, r"speaker_embedding\[1\] is true, expected a number"),
        ({"speaker_embedding": [None]}, r"speaker_embedding\[0\] is null"),
        ({"speaker_embedding": [1.0, 1e39]}, r"speaker_embedding\[1\] is 1e[+]39, expected a finite"),
        ({"speaker_embedding": [10**400]}, r"speaker_embedding\[0\] is 1000.*\.\.\., expected a finite"),
        ({"speaker_embedding": [float("nan")]}, "not valid JSON.*NaN is no number"),
        ({"speaker_embedding": [float("-inf")]}, "-Infinity is no number"),
    ],
)
def test_refuses(path, changes, match):
    write(path, **changes)
    with pytest.raises(VoiceError, match=match) as caught:
        Voice.load(path)
    assert str(path) in str(caught.value)


def test_a_byte_order_mark_is_skipped(path):
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(RECORD).encode())
    np.testing.assert_array_equal(Voice.load(path).x_vector, VALUES)
    path.write_bytes(b"\xef\xbb\xbf" * 2 + json.dumps(RECORD).encode())
    with pytest.raises(VoiceError, match="not valid JSON"):
        Voice.load(path)


def test_messages_stay_short(path):
    """Whatever a file, or its name, holds."""
    huge = "k" * 900_000
    write(path, **{huge: 1})
    made = [path.read_bytes()]
    metadata = {"x_vector_only_mode": "true", "icl_mode": "false"}
    made.append(safetensors.numpy.save({"speaker_embedding": VALUES}, metadata | {huge: "x"}))
    made.append(safetensors.numpy.save({"speaker_embedding": VALUES, huge: VALUES}, metadata))
    made.append(safetensors.numpy.save({"speaker_embedding": VALUES}, metadata).replace(b"F32", b"F" * 900_000))
    length = len(made[-1]) - 8 - VALUES.nbytes
    made[-1] = length.to_bytes(8, "little") + made[-1][8:]
    matches = ["unknown key 'kkk", "unknown metadata 'kkk", "unknown tensor 'kkk", "FFF"]
    for data, match in zip(made, matches, strict=True):
        path.write_bytes(data)
        with pytest.raises(VoiceError, match=match) as caught:
            Voice.load(path)
        assert len(str(caught.value)) < len(str(path)) + 500
    with pytest.raises(VoiceError, match="cannot be read") as caught:
        Voice.load(json.dumps(RECORD))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("key", ["speaker_embedding", "x_vector_only_mode", "icl_mode"])
def test_required_keys(path, key):
    path.write_text(json.dumps({name: value for name, value in RECORD.items() if name != key}))
    with pytest.raises(VoiceError, match=f"key '{key}' is missing"):
        Voice.load(path)


def test_any_truncation_is_refused(path):
    data = json.dumps(RECORD | {"speaker_embedding": [0.5, 1.5]}).encode()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(VoiceError, match="not valid JSON, or cut short"):
            Voice.load(path)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"[1, 2]", "expected a JSON object"),
        (b'"text"', "expected a JSON object"),
        (b"\xff\xfe{}", "not UTF-8 at byte 0"),
        (b"[" * 200_000, "not valid JSON"),
        (b'{"icl_mode": false, "icl_mode": true}', "a key is there twice"),
        (b'{"speaker_embedding": [1e999], "x_vector_only_mode": true, "icl_mode": false}', "finite"),
        (b'{"speaker_embedding": [' + b"1" * 5000 + b'], "x_vector_only_mode": true, "icl_mode": false}', "anna.json"),
        (b" " * (MAX_JSON_BYTES + 1), "larger than 2 MiB"),
        (b" " * (MAX_FILE_BYTES + 1), "larger than 16 MiB"),
        (b"", "the file is empty"),
        (b"\x80\x02cos\nsystem\n", "old-style pickle"),
    ],
)
def test_hostile_files(path, data, match):
    path.write_bytes(data)
    with pytest.raises(VoiceError, match=match):
        Voice.load(path)


def test_unreadable(tmp_path):
    with pytest.raises(VoiceError, match="cannot be read: No such file"):
        Voice.load(tmp_path / "nothing.json")
    with pytest.raises(VoiceError, match="cannot be read: Is a directory"):
        Voice.load(tmp_path)
    os.mkfifo(tmp_path / "pipe.json")
    for special in (tmp_path / "pipe.json", "/dev/zero"):
        with pytest.raises(VoiceError, match="not an ordinary file"):
            Voice.load(special)
    with pytest.raises(VoiceError, match="cannot be read"):
        Voice.load("a\0b.json")


def test_reads_a_recording(path):
    write(path, **ICL, ref_text=" What was said. ", ref_codes=CODES, fingerprint="ab12")
    voice = Voice.load(path)
    assert (voice.kind, voice.ref_text, voice.fingerprint) == ("icl", "What was said.", "ab12")
    np.testing.assert_array_equal(voice.ref_codes, CODES)
    np.testing.assert_array_equal(voice.x_vector, VALUES)
    assert Voice.load(path, name="Bert").name == "Bert"


def random_voice(seed):
    """Any float32, any codes, any text."""
    rng = np.random.default_rng(seed)
    width = int(rng.integers(1, 300))
    x_vector = rng.integers(0, 2**32, width, dtype=np.uint32).view(np.float32)
    x_vector[~np.isfinite(x_vector)] = rng.choice([0.0, -0.0, 1e-45, np.finfo(np.float32).max])
    fingerprint = rng.choice([None, "0a1b2c"])
    if rng.random() < 0.4:
        return Voice.from_x_vector(x_vector, fingerprint=fingerprint)
    codes = rng.integers(0, 2**15, (int(rng.integers(1, 50)), 16))
    text = "".join(rng.choice(list("abc äß今日🎉é\"\\\n\t\u2028\u0301{}"), int(rng.integers(1, 40)))) + "."
    return Voice.from_reference(x_vector, codes, text, fingerprint=fingerprint)


@pytest.mark.parametrize("ending", ["json", "JSON", "safetensors"])
def test_saving_loses_nothing(tmp_path, ending, seed):
    for i in range(40):
        voice, path = random_voice(seed + i), tmp_path / f"anna.{ending}"
        voice.save(path)
        again = Voice.load(path)
        assert again == voice, f"seed {seed + i}"
        assert (again.fingerprint, again.name) == (voice.fingerprint, "anna")
    assert [file.name for file in tmp_path.iterdir()] == [f"anna.{ending}"]


def test_the_form_of_other_runtimes(tmp_path):
    voice = Voice.from_reference(VALUES, CODES, "What was said.", fingerprint="ab12")
    voice.save(tmp_path / "plain.json", plain=True)
    assert json.loads((tmp_path / "plain.json").read_text()) == RECORD | ICL | {
        "ref_text": "What was said.", "ref_codes": CODES
    }  # fmt: skip
    voice.without_reference().save(tmp_path / "full.json")
    assert json.loads((tmp_path / "full.json").read_text()) == RECORD | {
        "format": "qwen3tts-voice", "version": 1, "fingerprint": "ab12"
    }  # fmt: skip


def test_saving_refuses(tmp_path):
    voice = Voice.from_x_vector(VALUES)
    for name in ("anna", "anna.pt", "anna.wav"):
        with pytest.raises(VoiceError, match="ends in .json or .safetensors"):
            voice.save(tmp_path / name)
    with pytest.raises(VoiceError, match="ends in .json$"):
        voice.save(tmp_path / "anna.safetensors", plain=True)
    with pytest.raises(VoiceError, match="does not exist; make it first"):
        voice.save(tmp_path / "nowhere" / "anna.json")
    for other in (Voice.preset("ryan"), Voice.no_speaker()):
        with pytest.raises(VoiceError, match="nothing to store"):
            other.save(tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []
