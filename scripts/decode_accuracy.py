#!/usr/bin/env python3
"""Logits of the decode core in bf16, against fp32 on the same codes, beside the official package's own in bf16.

    python scripts/decode_accuracy.py --preset 0.6b,1.7b --json accuracy.json

Models of the released sizes with random weights, drawn on the GPU. The core speaks some rows in bf16 and keeps the
logits of every pick; plain torch in fp32 and the official package's talker and code predictor, in bf16 and in fp32, are
then given the same codes. Fails if the core's relative L2 distance from fp32 is larger than the official package's.
Needs the official package and its transformers (docs/parity.md).
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from decode_checks.accuracy import summary, widened
from decode_checks.drawing import DrawnTalker, draw_talker, talker_config
from decode_checks.forcing import KeptLogits, plain_logits, speak_with_logits
from decode_checks.official import OfficialTalker
from decode_checks.specification import SEEDS, specification_rows

from qwen3tts.backends.native import Native, open_native
from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.backends.native.decode.weights import store_for_kernels
from qwen3tts.model.config import TalkerConfig
from qwen3tts.model.numerics import exact_arithmetic

SAME_MODEL = 1e-4
"""the official package in fp32 must be as near as this to plain torch in fp32, or it was driven wrongly"""


def measure(
    native: Native, config: TalkerConfig, preset: str, seeds: tuple[int, ...], frames: int, dtype: torch.dtype
) -> dict[str, Any]:
    """Relative L2 distances from fp32 of the core, plain torch and the official package."""
    drawn = draw_talker(config, dtype, native.device)
    exact = draw_talker(config, torch.float32, native.device)
    rows = specification_rows(drawn.talker, frames, seeds)
    kept = {
        name: KeptLogits(drawn.talker, len(rows), frames)
        for name in ("core", "plain", "official", "official_fp32", "fp32")
    }
    store_for_kernels(drawn.talker)
    core = NativeFrameDecoder(
        native, drawn.talker, drawn.padding, slots=len(rows), max_positions=1024, kv_bytes=None,
        kv_positions=1024 * len(rows), frames_per_replay=1, graphs=False,
    )  # fmt: skip
    codes = speak_with_logits(core, drawn.talker, rows, kept["core"])
    core.close()
    plain_logits(drawn.talker, drawn.padding, rows, codes, kept["plain"])
    plain_logits(exact.talker, exact.padding, widened(rows, torch.float32), codes, kept["fp32"])
    with exact_arithmetic(native.device):
        for name, official_dtype in (("official", dtype), ("official_fp32", torch.float32)):
            official(exact, preset, official_dtype).logits(rows, codes, kept[name])
    want = kept.pop("fp32")
    return {name: summary(logits, want) for name, logits in kept.items()} | {"rows": len(rows), "frames": frames}


def official(drawn: DrawnTalker, preset: str, dtype: torch.dtype) -> OfficialTalker:
    """The official package's modules with these weights."""
    return OfficialTalker(drawn, preset, dtype)


def problems(found: dict[str, Any]) -> list[str]:
    """What is wrong with a measurement."""
    wrong = [f"official package in fp32: {name} {value:.1e} from ours, expected less than {SAME_MODEL}"
             for name, value in found["official_fp32"].items() if not value < SAME_MODEL]  # fmt: skip
    for name in ("talker_rms", "predictor_rms"):
        ours, theirs = found["core"][name], found["official"][name]
        if not ours <= theirs:
            wrong.append(f"{name}: the core is {ours:.3e} from fp32, the official package {theirs:.3e}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="0.6b,1.7b")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--seeds", type=int, default=4, help="each greedy and sampled")
    parser.add_argument("--frames", type=int, default=48)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    native, found, wrong = open_native(a.backend), {}, []
    for preset in a.preset.split(","):
        started = time.perf_counter()
        entry = measure(native, talker_config(preset), preset, SEEDS[: a.seeds], a.frames, getattr(torch, a.dtype))
        found[preset] = entry | {"seconds": round(time.perf_counter() - started, 1)}
        for name, values in entry.items():
            print(preset, name, values, flush=True)
        wrong += [f"{preset}: {problem}" for problem in problems(entry)]
    if a.json:
        a.json.write_text(json.dumps(found | {"problems": wrong}, indent=1) + "\n")
    print("\n".join(wrong) or "no worse than the official package")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
