"""Makes the listed checkpoints, and starts the official package on them in its own Python."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1]))  # for a clone that is not installed; an installed package wins

from qwen3tts.synthetic import listed_checkpoints, make_listed_checkpoint, weights_sha256  # noqa: E402


def build_checkpoint(name, folder, tiktoken=None):
    """folder/name, made unless it is there with the listed weights. tiktoken: see make_checkpoint."""
    out = Path(folder) / name
    if out.exists():
        if weights_sha256(out) != listed_checkpoints()[name].sha256:
            raise SystemExit(f"{out} has other weights than the listed ones: remove it")
        return out
    return make_listed_checkpoint(name, out, tiktoken=tiktoken)


def run_reference(python, checkpoint, cases, outputs, dtype="float32"):
    """reference.py on one case file; raises SystemExit with what it said if it fails."""
    command = [python, str(HERE / "reference.py"), "--checkpoint", str(checkpoint), "--cases", str(cases),
               "--out", str(outputs), "--dtype", dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the official package failed on {cases}:\n{done.stderr[-3000:]}")
