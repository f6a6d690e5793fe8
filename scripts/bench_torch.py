#!/usr/bin/env python3
"""Times the plain torch backend on any device and compares its codes with stored ones.

    python scripts/bench_torch.py --work DIR --json out.json [--device cuda] [--preset 0.6b]
    python scripts/bench_torch.py --work DIR --device cpu --write-codes codes.npz     # then, elsewhere:
    python scripts/bench_torch.py --work DIR --device cuda --codes codes.npz --json out.json

A synthetic custom voice checkpoint (random weights, no end of speech) is made in DIR. For each dtype and batch the
clock covers whole generate() calls after a warm-up: prompts, prefill, frames, codec. Codes are compared in float32.
"""

import argparse
import json
import platform
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np
import torch

import qwen3tts
from qwen3tts import GenerateOptions
from qwen3tts.synthetic import make_checkpoint, weights_sha256

TEXT = "Hello there, this is a test of the speech runtime."
CASES = {
    "greedy": GenerateOptions(do_sample=False, subtalker_dosample=False, max_frames=12),
    "sampled": GenerateOptions(seed=2026, max_frames=12),
    "streamed": GenerateOptions(seed=7, max_frames=12, text_mode="streamed", top_k=20, top_p=0.9, temperature=1.1),
}


def describe_machine(device: torch.device, commit: str | None) -> dict[str, object]:
    """Card, driver and versions."""
    here = Path(__file__).resolve().parent
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True)
    facts: dict[str, object] = {
        "device": str(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit or git.stdout.strip() or "unknown",
        "qwen3tts": qwen3tts.__version__,
    }
    if device.type == "cuda":
        smi = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True
        )
        facts["card"] = smi.stdout.strip() or torch.cuda.get_device_name(device)
    return facts


def codes_of(folder: Path, device: torch.device) -> dict[str, np.ndarray]:
    """Codes of every case in float32."""
    with qwen3tts.load(folder, backend="torch", device=device, dtype="float32") as tts:
        return {
            name: tts.generate(TEXT, "ryan", "english", options=options, decode=False).codes
            for name, options in CASES.items()
        }


def compare(codes: dict[str, np.ndarray], stored: Path) -> dict[str, str]:
    """ "equal", or where the first difference is, for every case."""
    report = {}
    with np.load(stored) as expected:
        for name, found in codes.items():
            different = np.argwhere(found != expected[name])
            report[name] = "equal" if not len(different) else f"first difference at frame, codebook {different[0]}"
    return report


def measure(
    folder: Path, device: torch.device, dtype: str, batches: list[int], frames: int, repeats: int
) -> list[dict]:
    """One entry per batch: medians of whole calls."""
    rows = []
    with qwen3tts.load(folder, backend="torch", device=device, dtype=dtype) as tts:
        tts.warmup()
        for batch in batches:
            runs = []
            for repeat in range(-1, repeats):
                if device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats(device)
                started = time.perf_counter()
                speeches = tts.generate([TEXT] * batch, "ryan", "english", options=GenerateOptions(max_frames=frames))
                total = time.perf_counter() - started
                timings = speeches[0].timings
                loop = timings.generation_seconds - timings.prompt_seconds - timings.prefill_seconds
                if repeat >= 0:
                    decode = sum(speech.timings.decode_seconds for speech in speeches)
                    runs.append((timings.prefill_seconds, loop / frames, decode / frames / batch, total))
            prefill, frame, decode, total = (statistics.median(run[i] for run in runs) for i in range(4))
            rows.append(
                {
                    "dtype": dtype,
                    "batch": batch,
                    "frames": frames,
                    "prefill_ms": round(1e3 * prefill, 2),
                    "frame_ms": round(1e3 * frame, 2),
                    "codec_ms_per_frame": round(1e3 * decode, 3),
                    "rtf": round(total / (0.08 * frames * batch), 3),
                    "load_seconds": round(tts.load_seconds, 2),
                    "peak_memory_gb": round(torch.cuda.max_memory_allocated(device) / 1e9, 3)
                    if device.type == "cuda"
                    else None,
                }
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--preset", default="0.6b", choices=("tiny", "tiny-mtp", "small", "0.6b", "1.7b"))
    parser.add_argument("--tiktoken", help="dashscope wheel with the real vocabulary, for small, 0.6b and 1.7b")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--frames", type=int, default=25)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--codes", type=Path, help="codes to compare with")
    parser.add_argument("--write-codes", type=Path, help="write this device's codes and stop")
    parser.add_argument("--commit", help="named in the JSON where the folder is no git checkout")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    device = torch.device(a.device)
    folder = a.work / f"checkpoint-{a.preset}"
    if not folder.exists():
        make_checkpoint(folder, preset=a.preset, eos_gain=0.0, tiktoken=a.tiktoken)
    codes = codes_of(folder, device) if a.codes or a.write_codes else {}
    if a.write_codes:
        np.savez(a.write_codes, **codes)
        return
    result = {
        "what": "plain torch backend, whole generate() calls after one warm-up, sampled, medians",
        "machine": describe_machine(device, a.commit),
        "preset": a.preset,
        "weights_sha256": weights_sha256(folder),
        "codes": compare(codes, a.codes) if a.codes else None,
        "repeats": a.repeats,
        "rows": [
            row
            for dtype in a.dtypes.split(",")
            for row in measure(folder, device, dtype, [int(b) for b in a.batches.split(",")], a.frames, a.repeats)
        ],
    }
    print(json.dumps(result, indent=1))
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
