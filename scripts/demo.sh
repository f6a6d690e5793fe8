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
    cat <<'END'
usage: bash scripts/demo.sh [OPTION...]
Speaks one sentence and leaves demo.wav, demo.png (waveform and mel spectrogram) and demo.json (the figures) in the
project's folder. Makes the virtual environment .venv-demo first: 1.2 GB, 1 to 2 minutes, the first time only.
  --model FOLDER_OR_HUB_ID   a real checkpoint, for instance Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice
                             (default: a synthetic one, made on the spot: it makes sound, not words)
  --text TEXT                what to say
  --text-file FILE           the same, from a file
  --voice NAME               a preset voice of the checkpoint (default: ryan)
  --voice-file FILE          for base models: the voice, a JSON file
  --output FILE              instead of demo.wav; likewise --plot and --json
All options of `qwen3tts generate` work; `.venv-demo/bin/qwen3tts generate --help` lists them once the demo has run.
END
}

synthetic="demo/synthetic-checkpoint"
model="" text="Hello! This is a short sentence, spoken by a small model." text_file="" voice="" preset="ryan" more=()
while [ $# -gt 0 ]; do
    case "$1" in
        --?*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;  # --name=value is --name value
    esac
    case "$1" in
        -h | --help) usage; exit 0 ;;
        -m) set -- --model "${@:2}" ;;
    esac
    case "$1" in
        --model | --text | --text-file | --voice | --voice-file | --instruct | -o | --output | --plot | --json | --cache-dir)
            [ $# -ge 2 ] || { usage >&2; die "$1 needs a value"; } ;;
    esac
    case "$1" in
        --model | --text | --voice) printf -v "${1#--}" '%s' "$2"; shift 2 ;;
        --text-file) text_file="$(from_caller "$2")"; shift 2 ;;
        --voice-file) preset=""; more+=("$1" "$(from_caller "$2")"); shift 2 ;;  # an x-vector: no preset
        --instruct) preset=""; more+=("$1" "$2"); shift 2 ;;                     # voice design: no preset
        -o | --output | --plot | --json | --cache-dir) more+=("$1" "$(from_caller "$2")"); shift 2 ;;
        *) more+=("$1"); shift ;;
    esac
done

if [ -z "$model" ]; then
    say "The demo checkpoint is SYNTHETIC: random weights in the real layout. It makes sound, not words."
    say "For real speech: bash scripts/demo.sh --model Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"
elif [ -e "$invoked_from/$model" ]; then
    model="$(realpath "$invoked_from/$model")"
fi

require_python
environment="$PWD/.venv-demo"
mapfile -t packages < <(requirements plot)
make_environment "$environment" "${packages[@]}"
source_hash="$(hash_of qwen3tts csrc cmake build_support CMakeLists.txt pyproject.toml)"
if [ "$(cat "$environment/.source" 2>/dev/null)" != "$source_hash" ]; then
    say "installing qwen3tts"
    rm -f "$environment/.source"
    # Kernels for the card that is here and for no other; none where torch sees no card.
    read -r cuda hip < <("$environment/bin/python" -c '
import torch
cuda, hip = "OFF", "OFF"
if torch.cuda.is_available() and torch.version.hip:
    hip = "AUTO"
elif torch.cuda.is_available():
    cuda = "%d%d" % torch.cuda.get_device_capability()
print(cuda, hip)
') || true
    case "${cuda:-OFF}" in
        OFF) export QWEN3TTS_CUDA="${QWEN3TTS_CUDA:-OFF}" ;;
        *) export QWEN3TTS_CUDA_ARCHITECTURES="${QWEN3TTS_CUDA_ARCHITECTURES:-$cuda}" ;;
    esac
    export QWEN3TTS_HIP="${QWEN3TTS_HIP:-${hip:-OFF}}"
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

options=(--model "$model" --output "$PWD/demo.wav" --plot "$PWD/demo.png" --json "$PWD/demo.json")
if [ "$model" = "$synthetic" ]; then
    options+=(--gain 0.3)                            # it is noise: not at full volume
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"   # its matrices are too small for threads to pay (PERF_NOTES.md)
fi
voice="${voice:-$preset}"
[ -z "$voice" ] || options+=(--voice "$voice")
if [ -n "$text_file" ]; then
    say "speaking the text of $text_file"
    spoken=(--text-file "$text_file")
else
    say "speaking: $text"
    spoken=(-- "$text")
fi
exec "$environment/bin/qwen3tts" generate "${options[@]}" ${more[@]+"${more[@]}"} "${spoken[@]}"
