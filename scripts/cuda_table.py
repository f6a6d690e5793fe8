#!/usr/bin/env python3
"""Compiles every CUDA source for every architecture, and says what its kernels need: registers, spills, shared memory.

    python scripts/cuda_table.py                                    all sources for 80, 86, 89, 90, 100 and 120
    python scripts/cuda_table.py --architectures 90 --sources decode --json table.json

Ends with status 1 if a source does not compile without a warning, or a kernel spills a register. Nothing is run and no
GPU is needed; a quarter of an hour on two cores for everything.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURES = ("80", "86", "89", "90", "100", "120")
"""the default of QWEN3TTS_CUDA_ARCHITECTURES"""


@dataclass(frozen=True)
class Kernel:
    """One kernel on one architecture."""

    name: str
    registers: int
    shared: int
    """bytes, without the dynamic part"""
    stack: int
    spilled: int
    """bytes of registers that are stored and loaded again"""


@dataclass(frozen=True)
class Compiled:
    """One source for one architecture."""

    source: str
    architecture: str
    seconds: float
    kernels: tuple[Kernel, ...]
    problem: str
    """what the compiler said; empty if nothing"""


def cuda_sources() -> list[Path]:
    """All that nvcc compiles with kernels in it."""
    found = [*(ROOT / "csrc" / "common").rglob("*.cpp"), *(ROOT / "csrc" / "cuda").rglob("*.c*")]
    return sorted(path for path in found if "__global__" in path.read_text() or "QW_LAUNCH" in path.read_text())


def compile_one(nvcc: str, source: Path, architecture: str) -> Compiled:
    """With the flags of cmake/cuda.cmake."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            nvcc, "-x", "cu", "-std=c++17", "-O3", "-DNDEBUG", "-DQWEN3TTS_CUDA", '-DQWEN3TTS_ARCHITECTURES=""',
            f"--generate-code=arch=compute_{architecture},code=sm_{architecture}", "-Xcompiler",
            "-Wall,-Wextra,-Werror,-fvisibility=hidden,-fPIC", "-Werror=all-warnings", "-Xptxas", "-v",
            f"-I{ROOT / 'csrc'}", "-c", str(source), "-o", f"{folder}/object.o",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
    seconds = round(time.perf_counter() - started, 1)
    name, text = str(source.relative_to(ROOT / "csrc")), done.stdout + done.stderr
    return Compiled(name, architecture, seconds, parse(text), "" if done.returncode == 0 else text)


def parse(text: str) -> tuple[Kernel, ...]:
    """What `ptxas -v` says of each kernel."""
    found = []
    for part in re.split(r"Compiling entry function '", text)[1:]:
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        used = re.search(r"Used (\d+) registers", part)
        if frame is None or used is None:
            raise ValueError(f"ptxas said something else than expected: {part[:300]}")
        shared = re.search(r"(\d+) bytes smem", part)
        stack, stores, loads = map(int, frame.groups())
        name = part.split("'", 1)[0]
        found.append(Kernel(name, int(used[1]), int(shared[1]) if shared else 0, stack, stores + loads))
    return tuple(found)


def compile_all(nvcc: str, sources: Sequence[Path], architectures: Sequence[str], jobs: int) -> list[Compiled]:
    """Every source for every architecture, each said as it is done."""

    def work(item: tuple[Path, str]) -> Compiled:
        done = compile_one(nvcc, *item)
        most = max((kernel.registers for kernel in done.kernels), default=0)
        spilling = [kernel.name for kernel in done.kernels if kernel.spilled]
        state = done.problem or (f"SPILLS: {', '.join(spilling)}" if spilling else "")
        print(
            f"{done.source} sm_{done.architecture}: {len(done.kernels)} kernels, at most {most} registers, "
            f"{done.seconds} s {state}",
            flush=True,
        )
        return done

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(work, [(source, name) for name in architectures for source in sources]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--architectures", nargs="+", default=ARCHITECTURES)
    parser.add_argument("--sources", default="", help="part of their paths")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    sources = [source for source in cuda_sources() if a.sources in str(source.relative_to(ROOT))]
    if not sources:
        sys.exit(f"no source has {a.sources!r} in its path")
    done = compile_all(a.nvcc, sources, a.architectures, a.jobs)
    if a.json:
        a.json.write_text(json.dumps([asdict(one) for one in done], indent=1) + "\n")
    bad = [one for one in done if one.problem or any(kernel.spilled for kernel in one.kernels)]
    print(f"{len(done)} compilations, {sum(one.seconds for one in done):.0f} s, {len(bad)} with a problem")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
