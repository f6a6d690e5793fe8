#!/usr/bin/env python3
"""Saves what the official Qwen3TTSTokenizer.load_audio makes of some recordings, for tests/api/test_load_audio.py:

    REFERENCE_PYTHON scripts/parity/load_audio.py tests/api/load_audio.npz

REFERENCE_PYTHON is a Python that has the official package (docs/parity.md).
"""

import base64
import io
import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile

HERE = Path(__file__).resolve().parent
CASES = [(8_000, 1, "WAV"), (16_000, 2, "FLAC"), (24_000, 1, "WAV"), (24_000, 2, "WAV"), (44_100, 2, "WAV"),
         (48_000, 3, "FLAC"), (22_050, 1, "WAV")]
"""rate, channels, format of the files"""
TARGETS = (24_000, 16_000)


def recording(rate, channels, container):
    """The bytes of a file of noise, 16 bits."""
    rng = np.random.default_rng([rate, channels])
    samples = rng.integers(-20_000, 20_000, (int(rng.integers(500, 900)), channels), dtype=np.int16)
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=container, subtype="PCM_16")
    return file.getvalue()


def forms(data, path):
    """The ways to pass a recording: a path (written here), a base64 string, a data URL."""
    path.write_bytes(data)
    text = base64.b64encode(data).decode()
    found = {"path": str(path), "url": f"data:audio/wav;base64,{text}"}
    if "/" not in text:  # else it is taken for a path
        found["base64"] = text
    return found


def main():
    sys.path.insert(0, str(HERE / "stubs"))
    from qwen_tts import Qwen3TTSTokenizer

    load, results = Qwen3TTSTokenizer().load_audio, {}
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            for target in TARGETS:
                for form, source in forms(recording(*case), Path(folder) / f"a.{case[2].lower()}").items():
                    results[f"{case[0]}-{case[1]}-{target}-{form}"] = load(source, target)
    np.savez_compressed(sys.argv[1], **results)
    print(f"{len(results)} results in {sys.argv[1]}")


if __name__ == "__main__":
    main()
