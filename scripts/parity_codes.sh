#!/usr/bin/env bash
# Compares codes with the official package's, for a preset voice or a voice file:
#
#   bash scripts/parity_codes.sh REFERENCE_PYTHON CHECKPOINT TEXT --speaker Ryan
#   bash scripts/parity_codes.sh REFERENCE_PYTHON BASE_CHECKPOINT TEXT --voice-clone-prompt voice.json
#
# Then options of scripts/export_codes.py: --language, --max-frames, --repetition-penalty. The run is deterministic:
# greedy, repetition penalty 1.0, one token of lookahead. A voice file is JSON (`qwen3tts voice export`). Ends with codes_match=true, or with
# codes_match=false and the first difference (exit code 1). PYTHON is this project's Python, by default python3.
set -euo pipefail
[ "$#" -ge 5 ] || { sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
reference_python="$1" checkpoint="$2" text="$3"
shift 3

python="${PYTHON:-python3}" language=English max_frames=11 penalty=1.0 option='' voice='' ahead=(--text-lookahead-tokens 1)
while [ "$#" -gt 0 ]; do
    [ "$#" -ge 2 ] || { echo "error: $1 needs a value" >&2; exit 2; }
    case "$1" in
        --language) language="$2" ;;
        --max-frames) max_frames="$2" ;;
        --repetition-penalty) penalty="$2" ;;
        --speaker | --voice-clone-prompt) option="$1" voice="$2" ;;
        *) echo "error: unknown option $1" >&2; exit 2 ;;
    esac
    shift 2
done
[ -n "$option" ] || { echo "error: give --speaker or --voice-clone-prompt" >&2; exit 2; }

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
common=("$option=$voice" "--language=$language" "--max-frames=$max_frames" "--repetition-penalty=$penalty")
"$reference_python" "$scripts/export_codes.py" "${common[@]}" --output "$work/codes.npy" -- "$checkpoint" "$text"
# Beside a recording the text runs with the reference's frames and has no lookahead.
if [ "$option" = --voice-clone-prompt ] && "$python" -c '
import json, sys
sys.exit(json.load(open(sys.argv[1], encoding="utf-8-sig"))["icl_mode"] is not True)' "$voice"; then
    ahead=()
fi
status=0
PYTHONPATH="$scripts/..${PYTHONPATH:+:$PYTHONPATH}" "$python" -m qwen3tts.cli.hip_generate "${common[@]}" "${ahead[@]}" --no-do-sample \
    --no-subtalker-dosample --output none --ref-codes "$work/codes.npy" -- "$checkpoint" "$text" >"$work/out" || status=$?
grep -E '^(frames|codes_match|first_difference)' "$work/out" || true
exit "$status"
