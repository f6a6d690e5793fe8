#!/usr/bin/env bash
# Everything that needs a GPU, on a machine without a network. See usage().
set -uo pipefail
invoked_from="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
. scripts/lib.sh

usage() {
    cat <<'END'
usage: bash scripts/gpu_check.sh OUT [OPTION...]
Builds the native modules for the GPU that is there and runs, into the folder OUT (logs and JSON):
  tests      the tests marked gpu
  backends   the self-test of each backend, and the check of the default plan on a synthetic checkpoint
  bench      the decode core's speed at full size, and `qwen3tts bench` of the checkpoint
  decode     the decode core's proof in fp32 and its life
  sanitizer  the decode core's kernels under compute-sanitizer

  --parts NAME,NAME    these alone; all together take a quarter of an hour on a server
  --hip-root FOLDER    with include/hip, as scripts/hip_sdk.sh makes it: builds the HIP backend for NVIDIA, too
  --model CHECKPOINT   a folder, instead of a tiny model with random weights
  --commit HASH        named in the results
  -k EXPRESSION        of the tests, as pytest's
  --long               the decode core's whole life, and its accuracy beside the official package

Needs nvcc, cmake, ninja and a C++ compiler, and in python3 (or $PYTHON) torch for this GPU, pytest, psutil, pybind11,
scikit-build-core and what the package requires; compute-sanitizer for its part, the package qwen-tts for --long.
Nothing is installed outside OUT. Exit status: 0 all passed, 1 something failed, 2 nothing could be run.
END
}

all_parts=(tests backends bench decode sanitizer)
out="" hip_root="" commit="" expression="" model="" long="" parts=("${all_parts[@]}")
while [ $# -gt 0 ]; do
    case "$1" in
        --?*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;  # --name=value is --name value
    esac
    case "$1" in
        --parts | --hip-root | --model | --commit | -k) [ $# -ge 2 ] || die "$1 needs a value" ;;
    esac
    case "$1" in
        -h | --help) usage; exit 0 ;;
        --parts) IFS=, read -ra parts <<<"$2"; shift 2 ;;
        --hip-root) hip_root="$(from_caller "$2")"; shift 2 ;;
        --model) model="$(from_caller "$2")"; shift 2 ;;
        --commit) commit="$2"; shift 2 ;;
        -k) expression="$2"; shift 2 ;;
        --long) long=1; shift ;;
        -*) usage >&2; die "there is no option $1" ;;
        *) [ -z "$out" ] || die "one folder for results, not $out and $1"; out="$(from_caller "$1")"; shift ;;
    esac
done
[ -n "$out" ] || { usage >&2; die "name the folder for results"; }
[ ${#parts[@]} -gt 0 ] || die "--parts names none; there are ${all_parts[*]}"
for part in "${parts[@]}"; do
    [[ " ${all_parts[*]} " = *" $part "* ]] || die "there is no part '$part'; there are ${all_parts[*]}"
done
asked() { [[ " ${parts[*]} " = *" $1 "* ]]; }
[ -z "$hip_root" ] || [ -d "$hip_root/include/hip" ] || die "--hip-root: there is no $hip_root/include/hip"
[ -z "$model" ] || [ -d "$model" ] || die "--model: there is no folder $model"

python="${PYTHON:-python3}"
capability="$("$python" -c '
import torch
if not torch.cuda.is_available():
    raise SystemExit(f"torch {torch.__version__} sees no GPU")
print("%d%d" % torch.cuda.get_device_capability())')" || die "a GPU and a torch for it are needed in $python"
mkdir -p "$out" || die "$out cannot be made"
own="$(mktemp -d "$out/build.XXXXXX")" || die "nothing can be written into $out"  # removed at the end, unlike all else
failed=0 watching=()
tidy() {
    # Processes in the background do not hear Ctrl-C; timeout hands on to all its own what it is sent.
    for process in "${watching[@]}"; do pkill -TERM -P "$process"; done
    rm -rf "$own"
}
trap tidy EXIT
trap 'exit 130' INT TERM

step() { # step NAME COMMAND...: runs it into OUT/NAME.log; its exit status
    local name="$1" started=$SECONDS status=0
    shift
    "$@" >"$out/$name.log" 2>&1 || status=$?
    echo "== $name: exit code $status after $((SECONDS - started)) s"
    [ "$status" -eq 0 ] || { failed=1; tail -n "${TAIL:-12}" "$out/$name.log"; }
    return "$status"
}

export QWEN3TTS_CUDA=ON QWEN3TTS_CUDA_ARCHITECTURES="$capability" QWEN3TTS_HIP=OFF QWEN3TTS_COMMIT="$commit"
if [ -n "$hip_root" ]; then
    export QWEN3TTS_HIP=ON QWEN3TTS_HIP_PLATFORM=nvidia QWEN3TTS_ROCM_PATH="$hip_root"
fi
export NVCC_APPEND_FLAGS="-lineinfo${NVCC_APPEND_FLAGS:+ $NVCC_APPEND_FLAGS}"  # the sanitizer's reports name lines
site="$own/site"
step build "$python" -m pip install --no-build-isolation --no-deps --no-index --no-compile --target "$site" . \
    || die "nothing was run: the build failed"
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1 QWEN3TTS_CACHE="$own/cache"
step doctor "$python" -m qwen3tts doctor
backends=(cuda)
[ -z "$hip_root" ] || backends+=(hip)
if [ -z "$model" ]; then
    model="$own/checkpoint"
    step checkpoint "$python" -m qwen3tts.synthetic --preset tiny --type custom_voice --eos-gain 0 --out "$model"
fi

if asked tests; then
    if [ -z "$hip_root" ]; then
        echo "== LEFT OUT: the tests of HIP, which was not built (--hip-root)"
        expression="${expression:+($expression) and }not hip"
    fi
    step tests "$python" -m pytest -q -m gpu -p no:cacheprovider ${expression:+-k "$expression"} tests/gpu tests/native
    grep -E "passed|failed|error" "$out/tests.log" | tail -n 1
fi
if asked backends; then
    for backend in "${backends[@]}"; do
        step "selftest_$backend" "$python" -m qwen3tts selftest --backend "$backend" --json "$out/selftest_$backend.json"
        for dtype in float32 bfloat16; do
            step "check_${backend}_$dtype" "$python" -m qwen3tts optimize check "$model" --backend "$backend" \
                --dtype "$dtype" --json "$out/check_${backend}_$dtype.json" --html "$out/check_${backend}_$dtype.html"
        done
    done
fi
if asked bench; then
    step decode_bench "$python" scripts/bench_decode.py --no-check --launched --commit "$commit" \
        --json "$out/decode_bench.json"
    step bench "$python" -m qwen3tts bench "$model" --backend cuda --profile low-latency --stages --json "$out/bench.json"
fi
if asked decode; then
    specifications=(scripts/decode_checks/specification-*.npz)
    step decode_proof "$python" scripts/decode_proof.py compare "${specifications[@]}" --graphs --projections \
        --json "$out/decode_proof.json"
    quick=(--quick)
    if [ -n "$long" ]; then
        quick=()
        step decode_accuracy "$python" scripts/decode_accuracy.py --json "$out/decode_accuracy.json"
    fi
    step decode_life "$python" scripts/decode_life.py "${quick[@]}" --json "$out/decode_life.json"
fi
watched() { # watched NAME TOOL PARTS OPTION...: the decode core's kernels under compute-sanitizer
    local name="sanitizer_$1" tool="$2" kinds="$3" status
    shift 3
    step "$name" timeout 300 compute-sanitizer --tool "$tool" "$@" --print-limit 20 --show-backtrace no \
        --error-exitcode 9 "$python" scripts/decode_sanitize.py --parts "$kinds"
    status=$?
    sed -nE "s/^=+ (.*SUMMARY)/$name: \1/p" "$out/$name.log"
    return "$status"
}
if asked sanitizer && ! command -v compute-sanitizer >/dev/null; then
    echo "== LEFT OUT: compute-sanitizer is not on PATH"
    failed=1
elif asked sanitizer; then
    # Every tensor is an allocation of its own then, so that what lies beside it is not the process's.
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    ours=(--kernel-name kns=qwen3tts) launched=bfloat16,float16,float32
    # Side by side: what takes the time is the tool's work on the processor.
    watched memcheck memcheck "$launched,persistent" "${ours[@]}" & watching+=($!)
    # To initcheck, what an unwatched kernel has written is not written: it watches torch's, too.
    watched initcheck initcheck "$launched,persistent" & watching+=($!)
    # The persistent kernel is beyond racecheck (docs/decode.md).
    for dtype in ${launched//,/ }; do watched "racecheck_$dtype" racecheck "$dtype" "${ours[@]}" & watching+=($!); done
    for process in "${watching[@]}"; do wait "$process" || failed=1; done
    watching=()
fi
exit "$failed"
