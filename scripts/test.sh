#!/usr/bin/env bash
# Runs every test that needs no GPU, in a fresh virtual environment, against the wheel and not the source folder.
# Arguments go to pytest:  bash scripts/test.sh -k sampling
# HIP is compiled for AMD where its toolchain is there (scripts/hip_sdk.sh); with QWEN3TTS_REQUIRE_HIP=1 it must be.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh
started=$SECONDS
unset PYTHONPATH

require_python
environment="$PWD/.venv-test"
mapfile -t packages < <(requirements test)
make_environment "$environment" "${packages[@]}"
python="$environment/bin/python"

if rocm="$(bash scripts/hip_sdk.sh --print-path 2>&1)"; then
    export QWEN3TTS_HIP=ON QWEN3TTS_HIP_PLATFORM=amd QWEN3TTS_ROCM_PATH="$rocm"
elif [ "${QWEN3TTS_REQUIRE_HIP:-}" = 1 ]; then
    die "QWEN3TTS_REQUIRE_HIP=1, but ${rocm#error: }"
else
    say "LEFT OUT: compiling HIP for AMD: ${rocm#error: }"
    rocm=""
fi

say "building the sdist, and from it the wheel"
export QWEN3TTS_CUDA_ARCHITECTURES="${QWEN3TTS_CUDA_ARCHITECTURES:-90}"  # one is enough to see that all of it compiles
built="$(mktemp -d)"
kernel_tests=""
trap '[ -z "$kernel_tests" ] || kill "$kernel_tests" 2>/dev/null; rm -rf "$built"' EXIT
"$python" -P -m build --no-isolation --outdir "$built" . >"$built/log" 2>&1 || { cat "$built/log"; die "the build failed"; }
pip_install "$environment" --no-deps --no-index --force-reinstall "$built"/*.whl

say "the real vocabulary, for the tokenizer tests"
mkdir -p .cache
vocabulary="$PWD/.cache/dashscope-2.0.2-py3-none-any.whl"
if [ ! -f "$vocabulary" ]; then
    "$python" -m pip download -qq --no-deps --only-binary=:all: --dest "$built/download" dashscope==2.0.2 \
        || die "dashscope 2.0.2 could not be downloaded"
    mv "$built/download/$(basename "$vocabulary")" "$vocabulary"
fi

status=0
failed=()
# What failed is said once more at the end, where it is not lost among thousands of lines.
fail() { failed+=("$1"); status=1; }
say "ruff"
"$environment/bin/ruff" check . || fail ruff
say "mypy"
"$environment/bin/mypy" || fail mypy

if [ -n "$rocm" ]; then
    say "HIP: the module without a GPU"
    (cd "$built" && "$python" -P -c '
import importlib
module = importlib.import_module("qwen3tts._hip")
assert module.platform == "amd", module.platform
assert module.devices() == [], module.devices()
try:
    module.versions()
    print("HIP runtime", module.versions())
except RuntimeError as error:
    print("no driver:", error)') || fail "HIP: the module without a GPU"
    say "HIP: registers and spills of every kernel on every target"
    "$python" -P scripts/hip_table.py --rocm "$rocm" --write "$built/hip_kernels.md" || fail "HIP: registers and spills"
fi

# PYTHONSAFEPATH keeps `python -m` in a test from importing the source folder.
export OMP_NUM_THREADS=1 PYTHONSAFEPATH=1 QWEN3TTS_TEST_INSTALLED=1
export QWEN3TTS_TEST_DIST="$built" QWEN3TTS_DASHSCOPE_WHEEL="$vocabulary"
run_pytest() { "$environment/bin/pytest" -m "not gpu" "$@"; }
if [ $# -gt 0 ]; then
    say "pytest"
    run_pytest "$@" || fail pytest
else
    say "pytest in two processes: the kernels on the CPU beside all others"
    # No test that sends SIGINT may be in the second one: a shell's background processes ignore it.
    beside=(tests/native tests/emulation)
    run_pytest -p no:cacheprovider "${beside[@]}" >"$built/kernels.log" 2>&1 &
    kernel_tests=$!
    run_pytest "${beside[@]/#/--ignore=}" || fail "pytest, all but ${beside[*]}"
    wait "$kernel_tests" || fail "pytest ${beside[*]}"
    kernel_tests=""
    cat "$built/kernels.log"

    say "kernels on the CPU under AddressSanitizer, lanes in a random order"
    sanitized_tests=(tests/native/test_rms_norm.py tests/native/test_sampler.py tests/native/test_skinny_product.py
        tests/native/test_transposed_conv.py tests/native/test_graph.py)
    mapfile -t sanitizer < <("$python" -P tests/emulation/build.py --sanitizer-environment)
    [ ${#sanitizer[@]} -gt 0 ] || die "the sanitizer's library was not found"
    env "${sanitizer[@]}" EMU_SEED=$((RANDOM + 1)) QWEN3TTS_TEST_SANITIZE=1 \
        "$environment/bin/pytest" -q -m "not gpu" "${sanitized_tests[@]}" || fail "kernels under AddressSanitizer"
fi
for stage in "${failed[@]}"; do say "FAILED: $stage"; done
say "finished in $((SECONDS - started)) s"
exit "$status"
