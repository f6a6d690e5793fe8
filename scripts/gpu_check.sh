#!/usr/bin/env bash
# Everything that needs a GPU, on a machine without a network: builds the native modules for the card that is there and
# runs these parts:
#   tests      the tests marked gpu
#   backends   the self-test of each backend, and the check of the default plan on a synthetic checkpoint
#   bench      the decode core's speed at full size, and `qwen3tts bench` of the checkpoint
#   decode     the decode core's proof in fp32 and its life
#   sanitizer  the decode core's kernels under compute-sanitizer
#
#   bash scripts/gpu_check.sh OUT [--parts tests,backends] [--hip-root FOLDER] [--model CHECKPOINT] [--commit HASH]
#                                 [-k EXPRESSION] [--long]
#
# OUT gets the logs and JSON. --parts: all if left out, a quarter of an hour on a server. --hip-root: a folder with
# include/hip, as scripts/hip_sdk.sh makes it; the HIP backend is then built for NVIDIA, too. --model: instead of a tiny one
# with random weights. -k: of the tests. --long: the decode core's whole life and its accuracy beside the official package,
# which must be installed then. Needs a python3 with torch, pytest, pybind11 and scikit-build-core; nothing is installed
# outside OUT.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
usage() { sed -n '2,/^set /{/^#/p}' "$0"; }
[ $# -ge 1 ] || { usage; exit 2; }
[ "${1#-}" = "$1" ] || { echo "the first argument is the folder for results, not $1"; usage; exit 2; }
out="$(mkdir -p "$1" && cd "$1" && pwd)"
shift
all_parts="tests backends bench decode sanitizer"
hip_root="" commit="" expression="" model="" long="" parts="$all_parts"
while [ $# -gt 0 ]; do
    case "$1" in
        --parts) parts="${2//,/ }" ;;
        --hip-root) hip_root="$(cd "$2" && pwd)" ;;
        --model) model="$2" ;;
        --commit) commit="$2" ;;
        -k) expression="$2" ;;
        --long) long=1; shift; continue ;;
        *) echo "unknown argument $1"; exit 2 ;;
    esac
    shift 2
done
for part in $parts; do
    case " $all_parts " in *" $part "*) ;; *) echo "unknown part $part; there are $all_parts"; exit 2 ;; esac
done
asked() { case " $parts " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

python="${PYTHON:-python3}"
capability="$("$python" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability())')" || exit 2
site="$out/site"
failed=0
step() { # step NAME COMMAND...: runs it into OUT/NAME.log and goes on whatever comes out
    local name="$1" started=$SECONDS status=0
    shift
    "$@" >"$out/$name.log" 2>&1 || status=$?
    echo "== $name: exit code $status after $((SECONDS - started)) s"
    [ "$status" -eq 0 ] || { failed=1; tail -n "${TAIL:-12}" "$out/$name.log"; }
}

export QWEN3TTS_CUDA=ON QWEN3TTS_CUDA_ARCHITECTURES="$capability" QWEN3TTS_HIP=OFF QWEN3TTS_COMMIT="$commit"
if [ -n "$hip_root" ]; then
    export QWEN3TTS_HIP=ON QWEN3TTS_HIP_PLATFORM=nvidia QWEN3TTS_ROCM_PATH="$hip_root"
fi
export NVCC_APPEND_FLAGS="-lineinfo${NVCC_APPEND_FLAGS:+ $NVCC_APPEND_FLAGS}"  # the sanitizer's reports name lines
step build "$python" -m pip install --no-build-isolation --no-deps --no-index --no-compile --upgrade --target "$site" .
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1 QWEN3TTS_CACHE="$out/cache"
step doctor "$python" -m qwen3tts doctor
backends=(cuda)
[ -z "$hip_root" ] || backends+=(hip)
if [ -z "$model" ]; then
    model="$out/checkpoint"
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
    local name="sanitizer_$1" tool="$2" parts="$3"
    shift 3
    step "$name" timeout 300 compute-sanitizer --tool "$tool" "$@" --print-limit 20 --show-backtrace no \
        --error-exitcode 9 "$python" scripts/decode_sanitize.py --parts "$parts"
    grep -hE "ERROR SUMMARY|RACECHECK SUMMARY" "$out/$name.log"
    return "$failed"
}
if asked sanitizer && ! command -v compute-sanitizer >/dev/null; then
    echo "== LEFT OUT: compute-sanitizer is not on PATH"
elif asked sanitizer; then
    # Every tensor is an allocation of its own then, so that what lies beside it is not the process's.
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    ours=(--kernel-name kns=qwen3tts) launched=bfloat16,float16,float32 watching=()
    # Side by side: what takes the time is the tool's work on the processor.
    watched memcheck memcheck "$launched,persistent" "${ours[@]}" & watching+=($!)
    # To initcheck, what an unwatched kernel has written is not written: it watches torch's, too.
    watched initcheck initcheck "$launched,persistent" & watching+=($!)
    # The persistent kernel is beyond racecheck (docs/decode.md).
    for dtype in ${launched//,/ }; do watched "racecheck_$dtype" racecheck "$dtype" "${ours[@]}" & watching+=($!); done
    for process in "${watching[@]}"; do wait "$process" || failed=1; done
fi
rm -rf "$site" "$out/checkpoint"
exit "$failed"
