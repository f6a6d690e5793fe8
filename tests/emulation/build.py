"""Builds the HIP backend for the CPU: the project's kernels against the emulation of HIP in this folder.

The module that comes out is ``_hip`` with every binding, its pointers those of CPU tensors and its stream 0. Both wave
widths may be loaded into one process: nothing of a module is visible to the other. Object files are kept in the
project's ``.cache`` under a hash of all that goes into them.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".cache" / "emulation"
KEEP_SECONDS = 3 * 24 * 3600

SANITIZERS = ("-fsanitize=address,alignment,bounds", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g")


class EmulationBuildError(RuntimeError):
    """The compiler refused a source, or the sources break a rule of the emulation."""


def kernel_sources() -> list[Path]:
    """The sources with kernels."""
    return sorted(path for path in (ROOT / "csrc" / "common").rglob("*.cpp") if "__global__" in path.read_text())


def host_sources() -> list[Path]:
    """The backend's host side, and the emulation itself. A plain-loop stand-in replaces the BLAS libraries."""
    common = set((ROOT / "csrc" / "common").rglob("*.cpp")) - set(kernel_sources())
    backend = {path for path in (ROOT / "csrc" / "hip").glob("*.cpp") if path.name != "blas.cpp"}
    return sorted(common | backend | set(HERE.glob("*.cpp"))) + sorted((HERE / "runtime").glob("*.cpp"))


def binding_sources() -> list[Path]:
    """What turns it into a Python module. These know nothing of HIP."""
    return sorted(path for path in (ROOT / "csrc" / "bindings").glob("*.cpp") if path.name != "cuda.cpp")


def device_flags(wave: int, sanitize: bool = False, include: Path = ROOT / "csrc") -> list[str]:
    """g++ options for everything that sees HIP; ``include`` is the root of the kernels' headers."""
    if wave not in (32, 64):
        raise ValueError(f"wave is {wave}, expected 32 or 64")
    # QWEN3TTS_EMULATE_MMA: else only the kernels without tensor cores would be tested here.
    emulation = [f"-DEMU_WAVE={wave}", "-DQWEN3TTS_EMULATE_MMA", f"-I{HERE / 'include'}"]
    flags = [*_common_flags(include), "-ffp-contract=off", "-Wno-unknown-pragmas", *emulation]
    return [*flags, "-O1", *SANITIZERS] if sanitize else [*flags, "-O2"]


def build_emulated(
    out_dir: Path | str,
    wave: int,
    sanitize: bool = False,
    extra_flags: Sequence[str] = (),
    *,
    jobs: int = 2,
) -> Path:
    """Compiles ``_hip`` for the running Python and returns its path.

    A sanitized module loads only into a process that was started under ``sanitizer_environment()``.
    """
    import pybind11

    python = [f"-isystem{pybind11.get_include()}", f"-isystem{sysconfig.get_paths()['include']}"]
    device = [*device_flags(wave, sanitize), *extra_flags]
    bindings = [*_common_flags(ROOT / "csrc"), "-O0", *python]
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    module = out / f"_hip{sysconfig.get_config_var('EXT_SUFFIX')}"
    host = [(path, device) for path in host_sources()] + [(path, bindings) for path in binding_sources()]
    _link(module, [(path, device) for path in kernel_sources()], host, ["-shared", *_sanitizer(sanitize)], jobs)
    return module


def build_program(
    path: Path | str, driver: Path, kernel: Path, wave: int, sanitize: bool = False, *, include: Path = ROOT / "csrc"
) -> Path:
    """Compiles one kernel's source and a ``main`` that calls it into a program, for tests of the emulation itself."""
    flags = device_flags(wave, sanitize)
    elsewhere = (ROOT / "csrc" / "hip", ROOT / "csrc" / "common" / "decode")  # of the module, or calls of other kernels
    host = [source for source in host_sources() if source.parent not in elsewhere]
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    kernels = [(kernel, device_flags(wave, sanitize, include))]
    _link(target, kernels, [(source, flags) for source in [driver, *host]], _sanitizer(sanitize), jobs=2)
    return target


def load_emulated(path: Path | str, wave: int) -> ModuleType:
    """Imports a built module under a name of its own, which does not enter ``sys.modules``."""
    name = f"emulated{wave}._hip"  # the part after the dot names the initialization function
    loader = ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise ImportError(f"{path} is no extension module of {sys.version.split()[0]}")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def set_lane_order(path: Path | str, seed: int) -> None:
    """Threads and blocks of the module at ``path`` take turns in a random order from now on; 0: ascending again."""
    library = ctypes.CDLL(str(path))
    library.emulation_set_lane_order.argtypes = [ctypes.c_ulonglong]
    library.emulation_set_lane_order.restype = None
    library.emulation_set_lane_order(seed)


def sanitizer_environment() -> dict[str, str]:
    """Variables under which a child process can load sanitized modules."""
    found = _run([_compiler(), "-print-file-name=libasan.so"]).strip()
    standard = _run([_compiler(), "-print-file-name=libstdc++.so.6"]).strip()  # else exceptions abort in the preload
    if not Path(found).exists():
        raise EmulationBuildError("g++ has no libasan.so: install its sanitizer library")
    return {
        "LD_PRELOAD": f"{Path(found).resolve()}:{Path(standard).resolve()}",
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=99",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }


def _common_flags(include: Path) -> list[str]:
    # Two modules in one process must not share a variable: no exported symbols, and none "unique in the process".
    hidden = ["-fvisibility=hidden", "-fvisibility-inlines-hidden", "-fno-gnu-unique"]
    return ["-std=c++17", "-fPIC", *hidden, "-Wall", "-Wextra", "-Werror", f"-I{include}"]


def _sanitizer(sanitize: bool) -> list[str]:
    return list(SANITIZERS[:1]) if sanitize else []


_Work = list[tuple[Path, list[str]]]


def _link(target: Path, kernels: _Work, host: _Work, flags: Sequence[str], jobs: int) -> None:
    work = sorted([*kernels, *host], key=lambda item: item[0].parent.name != "bindings")  # these take longest
    with ThreadPoolExecutor(jobs) as pool:
        objects = dict(zip((path for path, _ in work), pool.map(lambda item: _object(*item), work), strict=True))
    _remove_old_objects()
    inner = {path: objects.pop(path) for path, _ in kernels}
    _refuse_state(inner)
    # Between the two markers lies the shared memory of all kernels: the linker keeps the order of its arguments.
    begin, end = (objects.pop(HERE / "runtime" / f"shared_{name}.cpp") for name in ("begin", "end"))
    _run([_compiler(), *flags, begin, *inner.values(), end, *objects.values(), "-o", target])


def _object(source: Path, flags: Sequence[str]) -> Path:
    """The object file of a source, from the cache if nothing it depends on has changed."""
    key = hashlib.sha256(repr((_compiler_version(), str(source), list(flags))).encode())
    include = Path(next(flag for flag in flags if flag.startswith("-I")).removeprefix("-I"))
    for path in _with_headers(source, include):
        key.update(path.read_bytes())
    target = CACHE / f"{source.stem}-{key.hexdigest()[:32]}.o"
    if target.exists():
        os.utime(target)
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        fresh = Path(folder) / target.name
        _run([_compiler(), *flags, "-c", source, "-o", fresh])
        fresh.replace(target)
    return target


def _with_headers(source: Path, include: Path) -> list[Path]:
    """The source and the project's own headers that it includes, directly or not."""
    found: dict[Path, None] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        for name in re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', path.read_text(), re.MULTILINE):
            options = (path.parent / name, include / name, HERE / "include" / name)
            waiting += [option.resolve() for option in options if option.is_file()][:1]
    return list(found)


def _remove_old_objects() -> None:
    for path in CACHE.glob("*.o"):
        if path.stat().st_mtime < time.time() - KEEP_SECONDS:
            path.unlink(missing_ok=True)


@functools.cache
def _compiler_version() -> str:
    return _run([_compiler(), "--version"])


def _compiler() -> str:
    compiler = shutil.which("g++")
    if compiler is None:
        raise EmulationBuildError("the emulation needs g++, which is not on PATH")
    return compiler


def _run(command: Sequence[object]) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise EmulationBuildError(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def _refuse_state(objects: dict[Path, Path]) -> None:
    """Kernel sources keep no variables: all that lies in their .bss must be shared memory, for it is poisoned."""
    for source, path in objects.items():
        for line in _run(["nm", path]).splitlines():
            kind, name = line.split()[-2:]
            # _ZZ: local to a function, as __shared__ arrays are; _ZGV: guard of a variable that a function sets up.
            if name.startswith("_ZGV") or (kind in "bB" and not name.startswith("_ZZ")):
                raise EmulationBuildError(f"{source.name}: {name} outlives a launch: kernels keep no state")


if __name__ == "__main__":
    if sys.argv[1:] != ["--sanitizer-environment"]:
        sys.exit("usage: build.py --sanitizer-environment")
    print("\n".join(f"{name}={value}" for name, value in sanitizer_environment().items()))
