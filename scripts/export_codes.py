#!/usr/bin/env python3
"""Exports the official package's codes of a deterministic run: greedy, streaming text, one token of lookahead.

    REFERENCE_PYTHON scripts/export_codes.py CHECKPOINT "Hello." --speaker Ryan --output codes.npy
    REFERENCE_PYTHON scripts/export_codes.py BASE_CHECKPOINT "Hello." --voice-clone-prompt voice.json --output codes.npy

REFERENCE_PYTHON is a Python that has the official package (docs/parity.md); this project is not imported. The file has
int16 [frames, 16], for `hip-custom-voice-generate --ref-codes`. scripts/parity_codes.sh does both.
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


def voice_item(path, dtype):
    """The prompt item of a voice file in JSON: an x-vector, and with icl_mode reference codes and transcript."""
    record = json.loads(Path(path).read_text(encoding="utf-8"))
    embedding = torch.tensor(record["speaker_embedding"], dtype=torch.float32).reshape(-1).to(dtype)
    codes = torch.tensor(record["ref_codes"]) if record["icl_mode"] else None
    return VoiceClonePromptItem(codes, embedding, record["x_vector_only_mode"], record["icl_mode"],
                                record.get("ref_text"))


def export(tts, a):
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
    if a.voice_clone_prompt is None:
        tts.generate_custom_voice(a.text, speaker=a.speaker, **common)
    else:
        tts.generate_voice_clone(a.text, voice_clone_prompt=[voice_item(a.voice_clone_prompt, tts.model.dtype)],
                                 **common)
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
    with contextlib.redirect_stdout(sys.stderr):
        tts = Qwen3TTSModel.from_pretrained(a.model, dtype=torch.float32, attn_implementation="eager")
        codes = export(tts, a)
    np.save(a.output, codes)
    print(f"python_frames={len(codes)}")


if __name__ == "__main__":
    main()
