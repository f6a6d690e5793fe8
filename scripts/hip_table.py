"""What every kernel needs on every AMD target: registers, LDS, spills, occupancy, as AMD's compiler reports it.

    python scripts/hip_table.py --rocm .hip-sdk/root/usr                      print the table
    python scripts/hip_table.py --rocm .hip-sdk/root/usr --write docs/hip_kernels.md

Ends with status 1 if a kernel spills a register or needs scratch memory. Nothing is run and no GPU is needed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1151")
# What the compiler calls it, and what the table does.
REMARKS = {
    "TotalSGPRs": "sgprs",
    "SGPRs": "sgprs",
    "VGPRs": "vgprs",
    "AGPRs": "agprs",
    "ScratchSize [bytes/lane]": "scratch",
    "SGPRs Spill": "sgpr_spills",
    "VGPRs Spill": "vgpr_spills",
    "LDS Size [bytes/block]": "lds",
    "Occupancy [waves/SIMD]": "occupancy",
}


@dataclass(frozen=True)
class Usage:
    """One kernel on one target. Registers per lane, LDS in bytes per block, occupancy in waves per SIMD."""

    kernel: str
    target: str
    vgprs: int
    agprs: int
    sgprs: int
    lds: int
    scratch: int
    sgpr_spills: int
    vgpr_spills: int
    occupancy: int

    @property
    def spills(self) -> bool:
        return bool(self.scratch or self.sgpr_spills or self.vgpr_spills)


def kernel_sources() -> list[Path]:
    """The sources with kernels."""
    return [path for path in sorted((ROOT / "csrc" / "common").glob("*.cpp")) if "QW_LAUNCH" in path.read_text()]


def find_compiler() -> str:
    """clang++ 19, else any. Raises SystemExit when there is none."""
    found = shutil.which("clang++-19") or shutil.which("amdclang++") or shutil.which("clang++")
    if found is None:
        sys.exit("no clang++ was found: run scripts/hip_sdk.sh as root, or give --compiler")
    return found


def device_libraries(rocm: Path) -> Path:
    """The folder of ocml.bc below `rocm`. Raises SystemExit when there is none."""
    for path in sorted(rocm.rglob("ocml.bc")):
        return path.parent
    sys.exit(f"no ocml.bc below {rocm}: run scripts/hip_sdk.sh, or give --rocm")


def compile_one(source: Path, target: str, rocm: Path, compiler: str) -> str:
    """Compiles for one target, device code only, and returns the compiler's remarks."""
    command = [
        compiler, "-x", "hip", "--cuda-device-only", f"--offload-arch={target}", "-std=c++17", "-O3", "-DNDEBUG",
        f"--rocm-path={rocm}", f"--rocm-device-lib-path={device_libraries(rocm)}", "-isystem", str(rocm / "include"),
        "-D__HIP_PLATFORM_AMD__=1", f"-I{ROOT / 'csrc'}", "-Wall", "-Wextra", "-Werror",
        "-Rpass-analysis=kernel-resource-usage", "-c", str(source), "-o", "/dev/null",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{source.name} does not compile for {target}:\n{done.stderr}")
    return done.stderr


def parse(remarks: str, target: str) -> list[Usage]:
    """Reads the compiler's remarks. Raises ValueError if a kernel lacks one of the figures."""
    kernels: list[tuple[str, dict[str, int]]] = []
    for text in re.findall(r"remark: (.*?) \[-Rpass-analysis=kernel-resource-usage\]", remarks):
        key, _, value = re.sub(r"^\S+:\d+:\d+: ", "", text).strip().partition(": ")
        if key == "Function Name":
            kernels.append((value, {"agprs": 0}))  # only CDNA has them, and says so
        elif key in REMARKS and kernels:
            kernels[-1][1][REMARKS[key]] = int(value)
    names = demangle([name for name, _ in kernels])
    found = []
    for name, (_, figures) in zip(names, kernels, strict=True):
        missing = set(REMARKS.values()) - set(figures)
        if missing:
            raise ValueError(f"the compiler said nothing of {', '.join(sorted(missing))} for {name} on {target}")
        found.append(Usage(name, target, **figures))
    return found


def demangle(names: list[str]) -> list[str]:
    """C++ names as in the sources, without namespaces, return types and parameters."""
    if not names:
        return []
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return [short_name(line) for line in text.splitlines()]


def short_name(name: str) -> str:
    """void qwen3tts::(anonymous namespace)::kernel<float, 4>(Arguments) -> kernel<float, 4>."""
    name = re.sub(r"\(anonymous namespace\)::|\bqwen3tts::|\bgpu::|^void ", "", name)
    depth = 0
    for at, character in enumerate(name):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            return name[:at]
    return name


def collect(rocm: Path, compiler: str, targets: Iterable[str], jobs: int = 2) -> list[Usage]:
    """Usage of every kernel on every target, in the order of sources, kernels and targets."""
    work = [(source, target) for source in kernel_sources() for target in targets]
    with ThreadPoolExecutor(jobs) as pool:
        remarks = list(pool.map(lambda item: compile_one(*item, rocm, compiler), work))
    found = [usage for (_, target), text in zip(work, remarks, strict=True) for usage in parse(text, target)]
    order = {name: at for at, name in enumerate(dict.fromkeys(usage.kernel for usage in found))}
    return sorted(found, key=lambda usage: order[usage.kernel])


def table(usages: list[Usage], version: str) -> str:
    """The figures as a Markdown page."""
    lines = [
        "# Kernels on AMD, as the compiler sees them",
        "",
        f"{version}, `-O3`. VGPRs (AGPRs after a plus) per lane, SGPRs per wave, spilled registers of both kinds,",
        "scratch in bytes per lane, LDS in bytes per block (without the dynamic part), occupancy in waves per SIMD.",
        "Written by `scripts/hip_table.py`. Nothing here was run on an AMD card.",
        "",
        "| kernel | target | VGPRs | SGPRs | LDS | spills | scratch | occupancy |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for u in usages:
        vgprs = f"{u.vgprs} + {u.agprs}" if u.agprs else str(u.vgprs)
        spills = u.vgpr_spills + u.sgpr_spills
        figures = (f"`{u.kernel}`", u.target, vgprs, u.sgprs, u.lds, spills, u.scratch, u.occupancy)
        lines.append(f"| {' | '.join(map(str, figures))} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command line above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rocm", type=Path, default=ROOT / ".hip-sdk" / "root" / "usr", help="parent of include/hip")
    parser.add_argument("--compiler", help="clang++")
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--write", type=Path, help="a file for the table, instead of the terminal")
    options = parser.parse_args()
    compiler = options.compiler or find_compiler()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    version = re.sub(r".*(clang version [0-9.]+).*", r"\1", version)
    usages = collect(options.rocm.resolve(), compiler, options.targets)
    if not usages:
        sys.exit("the compiler reported no kernel at all")
    text = table(usages, version)
    if options.write:
        options.write.write_text(text)
    else:
        print(text, end="")
    bad = [usage for usage in usages if usage.spills]
    for usage in bad:
        print(f"{usage.kernel} spills on {usage.target}: {usage}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
