#!/usr/bin/env bash
# Speaks one sentence and leaves demo.wav, demo.png and demo.json here.
#   bash scripts/demo.sh                                                   a synthetic checkpoint, no download of weights
#   bash scripts/demo.sh --model Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice      a real one
# Other arguments go to `qwen3tts generate`, for instance --voice Vivian --language chinese.
set -euo pipefail
invoked_from="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh
unset PYTHONPATH

usage() {
    echo "usage: bash scripts/demo.sh [--model FOLDER_OR_HUB_ID] [--text TEXT] [--voice NAME] [more options of 'qwen3tts generate']"
}

synthetic="demo/synthetic-checkpoint"
model="" text="Hello! This is a short sentence, spoken by a small model." voice="" more=()
while [ $# -gt 0 ]; do
    case "$1" in
        -h | --help) usage; exit 0 ;;
        --model | --text | --voice)
            [ $# -ge 2 ] || { usage >&2; die "$1 needs a value"; }
            printf -v "${1#--}" '%s' "$2"
            shift 2 ;;
        *) more+=("$1"); shift ;;
    esac
done

if [ -z "$model" ]; then
    say "The demo checkpoint is SYNTHETIC: random weights in the real layout. It makes sound, not words."
    say "For real speech: bash scripts/demo.sh --model Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"
elif [ -e "$invoked_from/$model" ]; then
    model="$(cd "$invoked_from" && realpath "$model")"
fi

require_python
environment="$PWD/.venv-demo"
mapfile -t packages < <(requirements plot)
make_environment "$environment" "${packages[@]}"
source_hash="$(hash_of qwen3tts csrc CMakeLists.txt pyproject.toml)"
if [ "$(cat "$environment/.source" 2>/dev/null)" != "$source_hash" ]; then
    say "installing qwen3tts"
    rm -f "$environment/.source"
    pip_install "$environment" --no-deps --force-reinstall .
    printf '%s' "$source_hash" >"$environment/.source"
fi

if [ -z "$model" ]; then
    model="$synthetic"
    if [ "$(cat demo/.source 2>/dev/null)" != "$source_hash" ]; then
        say "making the synthetic checkpoint"
        rm -rf demo
        mkdir demo
        "$environment/bin/python" -P -m qwen3tts.synthetic --out "$model" --preset tiny --type custom_voice --seed 1 --eos-gain 0.9
        printf '%s' "$source_hash" >demo/.source
    fi
fi

say "speaking: $text"
options=(--model "$model" --output demo.wav --plot demo.png --json demo.json)
case " ${more[*]-} " in
    *" --voice-file "* | *" --instruct "*) ;;  # an x-vector, or voice design: no preset
    *) voice="${voice:-ryan}" ;;
esac
if [ "$model" = "$synthetic" ]; then
    options+=(--gain 0.3)                                  # it is noise: not at full volume
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"         # its matrices are too small for threads to pay
fi
[ -z "$voice" ] || options+=(--voice "$voice")
"$environment/bin/qwen3tts" generate "${options[@]}" ${more[@]+"${more[@]}"} -- "$text"
say "wrote demo.wav, demo.png and demo.json in $PWD"
