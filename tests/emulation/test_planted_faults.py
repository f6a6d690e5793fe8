"""The emulation finds what it is for: real kernels with one fault planted are caught, and without it they pass."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
BARRIER = "  __syncthreads();\n  float total = partial[0];"
DIFFERENT, LAUNCH_FAILED, SANITIZER = 1, 3, 99


def load_build():
    spec = importlib.util.spec_from_file_location("emulation_build", HERE / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = load_build()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """program(op, wave, sanitize, (file, old, new)) -> its path; without the change, of the kernel as it is."""
    made = {}

    def make(op, wave, sanitize=False, change=None):
        key = (op, wave, sanitize, change)
        if key not in made:
            folder = tmp_path_factory.mktemp(op)
            root = CSRC
            if change is not None:
                root = folder / "csrc"
                shutil.copytree(CSRC / "common", root / "common")
                mutate(root / "common" / change[0], *change[1:])
            kernel = root / "common" / f"{op}.cpp"
            made[key] = build.build_program(
                folder / op, HERE / "drivers" / f"{op}.cpp", kernel, wave, sanitize, include=root
            )
        return made[key]

    return make


def mutate(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name} has {old!r} {text.count(old)} times: plant the fault anew"
    path.write_text(text.replace(old, new))


def run(path, *arguments, order=0):
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:exitcode=99", "EMU_SEED": str(order)}
    words = [str(path), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60)
    print(words[1:], order, done.returncode, done.stdout.strip(), done.stderr[:300])
    return done


@pytest.mark.parametrize(("wave", "sanitize"), [(32, False), (64, False), (32, True)])
def test_without_a_fault(program, wave, sanitize, seed):
    for order in (0, 1, 2, seed):
        for width in (1, 31, 256, 515, 2048):
            done = run(program("rms_norm", wave, sanitize), 5, width, seed % 1000, order=order)
            assert (done.returncode, done.stdout) == (0, "equal\n")
    for order in (0, seed):
        done = run(program("transposed_conv", wave, sanitize), 40, 37, seed % 1000, order=order)
        assert (done.returncode, done.stdout) == (0, "equal\n")


def test_missing_barrier_between_writer_and_reader(program):
    change = ("rms_norm.cpp", BARRIER, BARRIER.split("\n")[1])
    for order in (0, 1, 2):
        done = run(program("rms_norm", 64, change=change), 5, 2048, 7, order=order)
        assert done.returncode == DIFFERENT
        assert "nan" in done.stdout  # shared memory holds no zeros and nothing of the block before


def test_missing_barrier_before_the_next_round_needs_a_random_order(program):
    """In ascending order a thread never overtakes one that still reads; the random order shows the fault."""
    barrier = "    __syncthreads();\n  }\n  const int64_t step = first_step + column;"
    change = ("transposed_conv.cpp", barrier, barrier.split("\n", 1)[1])
    faulty = program("transposed_conv", 32, change=change)
    codes = [run(faulty, 40, 37, 7, order=order).returncode for order in range(6)]
    assert DIFFERENT in codes[1:]


def test_wave_taken_for_32_lanes(program):
    change = ("reduce.h", "int mask = kGroup / 2;", "int mask = wave_size() / 2;")
    assert run(program("rms_norm", 32, change=change), 5, 515, 7).returncode == 0
    assert run(program("rms_norm", 64, change=change), 5, 515, 7).returncode == DIFFERENT


def test_write_past_an_allocation(program):
    loop = "    if (column >= end) continue;\n    store<T, ALIGNED>(out, column, a.width, scaled("
    past = "    if (column > end) continue;\n    store<T, ALIGNED>(out, column, a.width, scaled("
    change = ("rms_norm.cpp", loop + "held[i], load<T, ALIGNED>(weight, column, a.width)", past + "held[i], held[i]")
    done = run(program("rms_norm", 32, True, change), 1, 256, 7)
    assert done.returncode == SANITIZER
    assert "heap-buffer-overflow" in done.stderr
    assert "WRITE of size" in done.stderr


def test_write_past_shared_memory(program):
    change = ("rms_norm.cpp", "partial[kMaxThreads / gpu::kGroup];", "partial[kMaxThreads / gpu::kGroup - 1];")
    done = run(program("rms_norm", 32, True, change), 1, 2048, 7)
    assert done.returncode != 0
    assert "partial" in done.stderr or "out of bounds" in done.stderr


@pytest.mark.parametrize("wave", [32, 64])
def test_divergent_barrier(program, wave):
    change = ("rms_norm.cpp", BARRIER, "  if (gpu::group_lane() == 0)" + BARRIER)
    done = run(program("rms_norm", wave, change=change), 1, 2048, 7)
    assert done.returncode == LAUNCH_FAILED
    assert "divergent barrier" in done.stdout
    assert "__syncthreads (rms_norm.cpp:" in done.stdout


def test_divergent_wave_operation(program):
    change = ("reduce.h", "for (int mask", "if (group_lane() < 7) return v;\n  for (int mask")
    done = run(program("rms_norm", 32, change=change), 1, 2048, 7)
    assert done.returncode == LAUNCH_FAILED
    assert "divergent" in done.stdout


def test_kernels_keep_no_variables(program):
    counter = "\nint calls_so_far = 0;\n}  // namespace\n"
    change = ("rms_norm.cpp", "\n}  // namespace\n", counter.replace("int", "int __attribute__((used))"))
    with pytest.raises(build.EmulationBuildError, match="outlives a launch"):
        program("rms_norm", 32, change=change)
