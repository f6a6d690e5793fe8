"""Builds the HIP backend for the CPU: the project's kernels against the emulation of HIP in this folder.

The module that comes out is ``_hip`` with every binding, its pointers those of CPU tensors and its stream 0. Both wave
widths may be loaded into one process: nothing of a module is visible to the other.
"""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RUNTIME = HERE / "runtime"

SANITIZERS = ("-fsanitize=address,alignment,bounds", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g")


class EmulationBuildError(RuntimeError):
    """The compiler refused a source, or the sources break a rule of the emulation."""


def kernel_sources() -> list[Path]:
    """Everything in csrc/common: all of it is kernels and their launchers."""
    return sorted((ROOT / "csrc" / "common").rglob("*.cpp"))


def host_sources() -> list[Path]:
    """The backend's host side and the bindings. A plain-loop stand-in replaces the BLAS libraries."""
    backend = [path for path in (ROOT / "csrc" / "hip").glob("*.cpp") if path.name != "blas.cpp"]
    bindings = [path for path in (ROOT / "csrc" / "bindings").glob("*.cpp") if path.name != "cuda.cpp"]
    stand_ins = [path for path in [HERE / "blas.cpp"] if path.exists()]
    return sorted(backend) + sorted(bindings) + stand_ins


def compile_flags(wave: int, sanitize: bool = False) -> list[str]:
    """g++ options for device and host sources alike."""
    if wave not in (32, 64):
        raise ValueError(f"wave is {wave}, expected 32 or 64")
    return [
        "-std=c++17",
        "-O1" if sanitize else "-O2",
        "-fPIC",
        "-ffp-contract=off",
        # Two modules in one process must not share a variable: no exported symbols, none "unique in the process".
        "-fvisibility=hidden",
        "-fvisibility-inlines-hidden",
        "-fno-gnu-unique",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unknown-pragmas",
        f"-DEMU_WAVE={wave}",
        "-DQWEN3TTS_EMULATE_MMA",  # else only the kernels without tensor cores would be tested here
        f"-I{HERE / 'include'}",
        f"-I{ROOT / 'csrc'}",
        *(SANITIZERS if sanitize else ()),
    ]


def build_emulated(
    out_dir: Path | str,
    wave: int,
    sanitize: bool = False,
    extra_flags: Sequence[str] = (),
    *,
    kernels: Iterable[Path] | None = None,
    jobs: int = 2,
) -> Path:
    """Compiles ``_hip`` for the running Python and returns its path.

    ``kernels`` replaces the sources of csrc/common (mutated copies of them, in the tests of the emulation itself).
    A sanitized module loads only into a process that was started with AddressSanitizer's library preloaded.
    """
    import pybind11

    out = Path(out_dir) / f"emulated{wave}{'-sanitized' if sanitize else ''}"
    out.mkdir(parents=True, exist_ok=True)
    flags = [
        *compile_flags(wave, sanitize),
        f"-isystem{pybind11.get_include()}",
        f"-isystem{sysconfig.get_paths()['include']}",
        *extra_flags,
    ]
    kernel_files = kernel_sources() if kernels is None else list(kernels)
    inner = [(path, f"kernel-{path.parent.name}-{path.stem}.o") for path in kernel_files]
    outer = [(path, f"{path.parent.name}-{path.stem}.o") for path in [*host_sources(), *runtime_sources()]]
    work = [*outer, *inner]
    work.sort(key=lambda item: -item[0].stat().st_size)  # the longest first
    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(lambda item: _run([_compiler(), *flags, "-c", item[0], "-o", out / item[1]]), work):
            pass
    kernel_objects = [out / name for _, name in inner]
    _refuse_state(kernel_objects)
    between = [out / "runtime-shared_begin.o", *kernel_objects, out / "runtime-shared_end.o"]
    rest = [out / name for _, name in outer if out / name not in between]
    module = out / f"_hip{sysconfig.get_config_var('EXT_SUFFIX')}"
    sanitizers = SANITIZERS[:1] if sanitize else ()
    _run([_compiler(), "-shared", *sanitizers, *between, *rest, "-o", module])
    return module


def runtime_sources() -> list[Path]:
    """The emulation itself."""
    return sorted(RUNTIME.glob("*.cpp"))


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
        "LD_PRELOAD": f"{Path(found).resolve()} {Path(standard).resolve()}",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }


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


def _refuse_state(objects: Sequence[Path]) -> None:
    """Kernel sources keep no variables: what lies in their .bss is shared memory, and is poisoned before every block."""
    for path in objects:
        for line in _run(["nm", path]).splitlines():
            kind, name = line.split()[-2:]
            # _ZZ: local to a function, as __shared__ arrays are; _ZGV: guard of a variable that a function sets up.
            if kind in "bBdDV" and (name.startswith("_ZGV") or (kind in "bBV" and not name.startswith("_ZZ"))):
                if kind == "V" and name.startswith(("_ZTI", "_ZTS", "_ZTV", "DW.ref.")):
                    continue
                raise EmulationBuildError(f"{path.name}: {name} is a variable with a life of its own; a launcher may have none")
