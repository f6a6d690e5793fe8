"""x-vector files: what is read, and every kind of file that is refused."""

import json

import numpy as np
import pytest

from qwen3tts.errors import VoiceError
from qwen3tts.voice.files import MAX_FILE_BYTES
from qwen3tts.voice.voice import Voice

VALUES = np.random.default_rng(7).standard_normal(64).astype(np.float32)
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
        ({"icl_mode": True}, "icl_mode true: prompts with reference codes are not supported.*x_vector_only_mode true"),
        ({"x_vector_only_mode": False}, "x_vector_only_mode is false and .*not supported in this version"),
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
        (b" " * (MAX_FILE_BYTES + 1), "larger than 16 MiB"),
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
