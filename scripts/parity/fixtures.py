"""What the committed fixtures keep of the official package's results, and how they are stored.

A folder holds CHECKPOINT.npz with arrays named CASE/ARRAY.ROW, and manifest.json. Kept whole: token ids, prompts,
trailing rows, codes, tokens, embeddings. Thinned out, with the strides in the manifest: waveforms, and the logits of
the first frames.
"""

import io
import json
import zipfile
from pathlib import Path

import numpy as np

WAV_STRIDE = 16
LOGIT_FRAMES = 4
# Columns of the logits kept: every n-th. The real vocabularies would not fit otherwise.
LOGIT_STRIDES = {"tiny": {"talker_logits": 4, "predictor_logits": 1},
                 "small": {"talker_logits": 16, "predictor_logits": 16}}
WHOLE = ("text_ids", "instruct_ids", "ref_ids", "ref_codes", "speaker_embedding", "prefill", "trailing", "tts_pad",
         "codes", "tokens", "embedding")


def logit_strides(checkpoint):
    return LOGIT_STRIDES["small" if checkpoint.startswith("small") else "tiny"]


def thin(name, array, checkpoint):
    """The part of one array that is kept, or None. Integers in the smallest of int16 and int32 that holds them."""
    kind = name.split(".")[0]
    if kind in WHOLE:
        kept = array
    elif kind == "wav":
        kept = array[::WAV_STRIDE]
    elif kind in ("talker_logits", "predictor_logits"):
        kept = array[:LOGIT_FRAMES, ..., ::logit_strides(checkpoint)[kind]]
    elif kind == "margin":
        kept = array.astype(np.float16)
    else:
        return None
    if kept.dtype.kind == "i":
        kept = kept.astype(np.int16 if np.abs(kept).max(initial=0) < 2**15 else np.int32)
    return np.ascontiguousarray(kept)


def save_npz(path, arrays):
    """np.savez_compressed with the same bytes every time: sorted names, fixed time stamps."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(arrays):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, arrays[name], allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, buffer.getvalue(), compresslevel=9)


def read_manifest(folder):
    return json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))


class CaseArrays:
    """Arrays of one case: `case["codes.0"]`, `case.get("instruct_ids.0")`."""

    def __init__(self, archive, case):
        self.archive, self.case = archive, case

    def __getitem__(self, name):
        return self.archive[f"{self.case}/{name}"]

    def get(self, name):
        return self[name] if f"{self.case}/{name}" in self.archive.files else None
