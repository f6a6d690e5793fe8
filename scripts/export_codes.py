#!/usr/bin/env python3
"""Exports the official package's codes of a deterministic run: greedy, streaming text, one token of lookahead.

    REFERENCE_PYTHON scripts/export_codes.py CHECKPOINT "Hello." --speaker Ryan --output codes.npy
    REFERENCE_PYTHON scripts/export_codes.py --speaker Ryan --output codes.npy -- CHECKPOINT "- A text with a dash."
    REFERENCE_PYTHON scripts/export_codes.py BASE_CHECKPOINT "Hello." --voice-clone-prompt voice.json --output codes.npy

REFERENCE_PYTHON is a Python that has the official package (docs/parity.md); this project is not imported. The file has
int16 [frames, 16], for `hip-custom-voice-generate --ref-codes`. scripts/parity_codes.sh does both. Exit code 2 and one
line on stderr for what cannot be used.
"""

import argparse
import contextlib
import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "parity" / "stubs"))  # see scripts/parity/reference.py
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import torch  # noqa: E402

with contextlib.redirect_stdout(sys.stderr):  # the package prints notices when imported
    import transformers
    from qwen_tts import Qwen3TTSModel, VoiceClonePromptItem


def voice_item(path):
    """The prompt item of a voice file in JSON: an x-vector, and with icl_mode reference codes and transcript.

    Raises ValueError, or OSError if it cannot be read."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except ValueError:
        raise ValueError(f"{path} is no JSON, the only kind of voice file that is read here; "
                         f"make one: qwen3tts voice export {path} voice.json") from None
    keys = ("speaker_embedding", "x_vector_only_mode", "icl_mode")
    keys += ("ref_codes",) if isinstance(record, dict) and record.get("icl_mode") else ()
    if not isinstance(record, dict) or any(key not in record for key in keys):
        raise ValueError(f"{path} is no voice file: expected a JSON object with {', '.join(keys)}")
    embedding = torch.tensor(record["speaker_embedding"], dtype=torch.float32).reshape(-1)
    codes = torch.tensor(record["ref_codes"]) if record["icl_mode"] else None
    return VoiceClonePromptItem(codes, embedding, record["x_vector_only_mode"], record["icl_mode"],
                                record.get("ref_text"))


def export(tts, a, item):
    """int16 [frames, 16], taken as the model returns them, before they are decoded."""
    made = []
    original = tts.model.generate

    def generate(*args, **kwargs):
        result = original(*args, **kwargs)
        made.append(result[0][0])
        return result

    tts.model.generate = generate
    common = {"language": a.language, "non_streaming_mode": False, "max_new_tokens": a.max_frames + 1,
              "do_sample": False, "subtalker_dosample": False, "repetition_penalty": a.repetition_penalty}
    if item is None:
        tts.generate_custom_voice(a.text, speaker=a.speaker, **common)
    else:
        tts.generate_voice_clone(a.text, voice_clone_prompt=[item], **common)
    return made[0].cpu().numpy().astype(np.int16)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="checkpoint folder")
    parser.add_argument("text")
    voice = parser.add_mutually_exclusive_group(required=True)
    voice.add_argument("--speaker", help="a preset, for custom voice checkpoints")
    voice.add_argument("--voice-clone-prompt", help="a voice file in JSON, for base checkpoints")
    parser.add_argument("--language", default="English")
    parser.add_argument("--max-frames", type=int, default=11, help="default: %(default)s")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, help="default: %(default)s, off")
    parser.add_argument("--output", type=Path, required=True, help=".npy file to write")
    a = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    try:
        item = None if a.voice_clone_prompt is None else voice_item(a.voice_clone_prompt)
        with contextlib.redirect_stdout(sys.stderr):
            tts = Qwen3TTSModel.from_pretrained(a.model, dtype=torch.float32, attn_implementation="eager")
            codes = export(tts, a, item)
        np.save(a.output, codes)
    except (OSError, ValueError) as error:  # the package's own: an unknown language or speaker, another kind of model
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    print(f"python_frames={len(codes)}")


if __name__ == "__main__":
    main()
