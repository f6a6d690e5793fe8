"""What a failing compiler says, on its way into the build's messages and the build record."""

import json
import random
import subprocess
from pathlib import Path

import pytest
from scikit_build_core.program_search import get_cmake_programs

from qwen3tts.backends.native import build_info

CMAKE = Path(__file__).resolve().parents[2] / "cmake"
SCRIPT = """
include("{cmake}/options.cmake")
execute_process(COMMAND {command} OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE status)
qwen3tts_one_line(cuda_reason "${{text}}" "${{status}}")
message("${{cuda_reason}}")
qwen3tts_json(cuda_reason "${{cuda_reason}}")
qwen3tts_json(commit "${{text}}")
set(cuda_built false)
set(hip_built false)
configure_file("{cmake}/build_info.json.in" "{record}" @ONLY)
"""


@pytest.fixture(scope="module")
def cmake() -> str:
    return str(next(program.path for program in get_cmake_programs() if program.version))


def reason_of(cmake: str, folder: Path, command: str) -> tuple[str, str]:
    """(the line, all of the text), as the record has them, for what a command prints."""
    script, record = folder / "script.cmake", folder / "_build_info.json"
    script.write_text(SCRIPT.format(cmake=CMAKE, command=command, record=record))
    done = subprocess.run([cmake, "-P", str(script)], capture_output=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    data = json.loads(record.read_bytes().decode("ascii"))
    line = data["cuda"]["reason"]
    assert done.stderr.decode("ascii").rstrip("\n") == line.rstrip()
    return line, data["commit"]


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        (b"\x1b[31mnvcc fatal error\x1b[0m:\tcicc missing\n", "nvcc fatal error: cicc missing"),
        (b"\x1b[01;31m\x1b[Kfatal error:\x1b[m\x1b[K a\x07b\n", "fatal error: a?b"),
        (b'error: "quoted" \\back\\\nmore\n', 'error: "quoted" \\back\\'),
        (b"a [1\nb\nfatal error: c; d\n", "fatal error: c, d"),
        ("x.cu:1: error: ‘größe’ \n".encode(), "x.cu:1: error: ?gr?e?"),
        (b"error: \xff\xfe\n", "error: ?"),
        (b"first\nlast\n", "last"),
        (b"error: ${status} @status@ $ENV{HOME}\n", "error: ${status} @status@ $ENV{HOME}"),
        (b"error: " + b"x" * 500, "error: " + "x" * 293),
        (b"error: " + "é".encode() * 500, "error: ?"),
    ],
)  # fmt: skip
def test_line_of_a_message(cmake: str, tmp_path: Path, printed: bytes, line: str) -> None:
    (tmp_path / "printed").write_bytes(printed)
    assert reason_of(cmake, tmp_path, "cat printed")[0] == line


def test_program_that_prints_nothing(cmake: str, tmp_path: Path) -> None:
    assert reason_of(cmake, tmp_path, "sh -c [[exit 3]]")[0] == "it printed nothing and ended with status 3"
    assert reason_of(cmake, tmp_path, "/does/not/exist")[0].lower() == "no such file or directory"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "(ocml.bc) were not found below /no/rocm. Install rocm-device-libs"),
        ("/no/libs", "there is no ocml.bc in /no/libs. Set QWEN3TTS_HIP_DEVICE_LIBS to"),
    ],
)
def test_missing_device_libraries(cmake: str, tmp_path: Path, given: str, message: str) -> None:
    script = tmp_path / "script.cmake"
    script.write_text(
        f'include("{CMAKE}/options.cmake")\ninclude("{CMAKE}/hip.cmake")\nset(QWEN3TTS_HIP_COMPILER clang++)\n'
        f'set(QWEN3TTS_HIP_DEVICE_LIBS "{given}")\nqwen3tts_amd_toolchain(/no/rocm reason)\nmessage("${{reason}}")\n'
    )
    done = subprocess.run([cmake, "-P", str(script)], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert message in done.stderr


def test_any_bytes_make_a_valid_record(cmake: str, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    for size in (1, 7, 64, 700):
        for _ in range(3):
            (tmp_path / "printed").write_bytes(bytes(draw.randrange(1, 256) for _ in range(size)))
            line, whole = reason_of(cmake, tmp_path, "cat printed")
            assert (line + whole).isprintable()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b'{"cuda": 3}', b'{"commit": "a", "cuda": {"built": true}}', b"[" * 100_000,
        b'{"commit": 1, "cuda": {"built": true, "reason": "", "toolkit": "", "targets": ""}}',
        b'{"commit": "", "cuda": {"built": "yes", "reason": "", "toolkit": "", "targets": ""}}',
    ],
)  # fmt: skip
def test_damaged_record_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    (tmp_path / build_info.FILE).write_bytes(data)
    monkeypatch.setattr(build_info.resources, "files", lambda package: tmp_path)
    record = build_info.build_record("cuda")
    assert not record.built
    assert "_build_info.json, the record of the build, " in record.reason


def test_control_characters_in_a_record_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b'{"commit": "", "cuda": {"built": false, "reason": "\x1b[31ma\tb\xff", "toolkit": "", "targets": ""}}'
    (tmp_path / build_info.FILE).write_bytes(text)
    monkeypatch.setattr(build_info.resources, "files", lambda package: tmp_path)
    assert build_info.build_record("cuda").reason == "\x1b[31ma\tb\ufffd"
