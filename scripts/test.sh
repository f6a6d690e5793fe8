#!/usr/bin/env bash
# Runs every test that needs no GPU, in a fresh virtual environment, against the wheel and not the source folder.
# Arguments go to pytest:  bash scripts/test.sh -k sampling
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

say "building the sdist, and from it the wheel"
export QWEN3TTS_CUDA_ARCHITECTURES="${QWEN3TTS_CUDA_ARCHITECTURES:-90}"  # one is enough to see that all of it compiles
built="$(mktemp -d)"
trap 'rm -rf "$built"' EXIT
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
say "ruff"
"$environment/bin/ruff" check . || status=1
say "mypy"
"$environment/bin/mypy" || status=1

say "pytest"
# PYTHONSAFEPATH keeps `python -m` in a test from importing the source folder.
OMP_NUM_THREADS=1 PYTHONSAFEPATH=1 QWEN3TTS_TEST_INSTALLED=1 QWEN3TTS_TEST_DIST="$built" QWEN3TTS_DASHSCOPE_WHEEL="$vocabulary" \
    "$environment/bin/pytest" -m "not gpu" "$@" || status=$?
say "finished in $((SECONDS - started)) s"
exit "$status"
