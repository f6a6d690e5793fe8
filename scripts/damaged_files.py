#!/usr/bin/env python3
"""Makes some three hundred damaged voice files and recordings, and checks how they are refused.

    python scripts/damaged_files.py FOLDER              writes them: truncated, of wrong types and shapes, with NaN,
                                                        absurd sizes, zip bombs, text for audio, voices for audio, ...
    python scripts/damaged_files.py FOLDER --check      loads what is in FOLDER (made first, if there is nothing)

--check loads all files in one process. Each must be refused by an error of this package that is short and names it,
within 2 s of CPU time; altogether the process may grow by 500 MB after the imports. Prints a line per file: seconds
of CPU time, megabytes of growth so far, the error. Exit code 1 if anything fails. The same --seed makes the same bytes
(with the same versions of the libraries).
"""

import argparse
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # for a clone that is not installed
sys.path.insert(0, str(HERE))

from damaged_contents import MEGABYTE, compact_voices, json_voices, official_voices, recordings  # noqa: E402

CPU_SECONDS = 2.0
HANG_SECONDS = 60
GROWTH = 500 * MEGABYTE
CEILING = 4096 * MEGABYTE
"""beyond it allocation fails, so that a bomb cannot take the machine down"""
MESSAGE = 600
"""characters, besides the path"""
VOICE_ENDINGS = (".json", ".safetensors", ".pt")


def corpus(seed):
    """(file name, contents) of all files; names sort in this order."""
    rng = np.random.default_rng(seed)
    voices = ((json_voices, "json"), (compact_voices, "safetensors"), (official_voices, "pt"))
    named = ((f"{what}.{ending}", data) for make, ending in voices for what, data in make(rng))
    for number, (name, contents) in enumerate(chain(named, recordings(rng))):
        stem, _, ending = name.rpartition(".")
        yield f"{number:03d}_{''.join(c if c.isalnum() else '_' for c in stem)[:40]}.{ending}", contents


def write(folder, seed):
    """Writes all files, and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, contents in corpus(seed):
        paths.append(folder / name)
        paths[-1].write_bytes(contents)
    return paths


def peak_memory():
    """Bytes of memory that this process had at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):  # unlike ru_maxrss, it does not begin with what the parent process had
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not say how much memory a process had at most")


def failure(path, load, errors):
    """(what is wrong with how a file is refused or "", the error in one line)."""
    try:
        load(path)
    except errors as error:
        message = str(error)
    except Exception as error:  # what must not happen, whatever it is
        return "no error of this package", f"{type(error).__name__}: {error}"[:200]
    else:
        return "it was read", ""
    shown = " ".join(message.replace(str(path), "FILE").split())
    if str(path) not in message:
        return "the message does not name the file", shown[:200]
    return "the message is too long" if len(message) > len(str(path)) + MESSAGE else "", shown


def check(paths):
    """Loads the files and prints the table; the number of failures."""
    import resource

    import soundfile  # noqa: F401  imported when first used, which is no growth of ours
    import soxr  # noqa: F401

    from qwen3tts.audio.reading import read_audio
    from qwen3tts.errors import Qwen3TTSError
    from qwen3tts.voice.voice import Voice

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + CEILING, resource.RLIM_INFINITY))
    before, failures, slowest = peak_memory(), 0, 0.0
    for path in paths:
        signal.alarm(HANG_SECONDS)
        started = time.process_time()
        wrong, shown = failure(path, Voice.load_all if path.suffix in VOICE_ENDINGS else read_audio, Qwen3TTSError)
        seconds, growth = time.process_time() - started, peak_memory() - before
        if not wrong and seconds > CPU_SECONDS:
            wrong = f"more than {CPU_SECONDS:g} s"
        if not wrong and growth > GROWTH:
            wrong = f"more than {GROWTH // MEGABYTE} MB"
        failures, slowest = failures + bool(wrong), max(slowest, seconds)
        line = f"{path.name:50s} {seconds:6.3f} s {growth / MEGABYTE:6.1f} MB  {wrong and f'FAILED: {wrong}. '}{shown}"
        print(line.encode("utf-8", "backslashreplace").decode(), flush=True)
    signal.alarm(0)
    print(f"{len(paths)} files, {failures} failures, at most {slowest:.2f} s, {growth / MEGABYTE:.0f} MB")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=20, help="of the random parts (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="load the files of the folder")
    a = parser.parse_args()
    if not a.check:
        print(f"{len(write(a.folder, a.seed))} files in {a.folder}")
        return
    if not a.folder.is_dir() or not any(a.folder.iterdir()):
        # In another process, as making them takes memory too.
        subprocess.run([sys.executable, __file__, str(a.folder), "--seed", str(a.seed)], check=True)
    sys.exit(1 if check(sorted(a.folder.iterdir())) else 0)


if __name__ == "__main__":
    main()
