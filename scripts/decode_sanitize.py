#!/usr/bin/env python3
"""Every kernel of the decode core, in as few launches as that takes: what compute-sanitizer watches on a GPU.

    compute-sanitizer --tool racecheck --kernel-name kns=qwen3tts python scripts/decode_sanitize.py

A watched launch may take a thousand times its time, so what needs no depth has none: one layer, three codes a frame and
one frame on models of the released widths with random weights.

bfloat16, float16, float32: the kernels that are launched one by one, with 1, 8, 16 and 20 rows: each of their forms,
with clusters of 4 and 2 blocks and without. Prompts of 1 to 70 positions, every way to draw, eager and replayed.
persistent: the one kernel of one row's code predictor, which has all its layers and codes, for every way to draw.

A row's codes must be the same in every company and form. initcheck must watch torch's kernels, too (no --kernel-name):
to it, what an unwatched kernel has written is not written.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from decode_checks.bits import first_difference
from decode_checks.drawing import draw_row, talker_config
from decode_checks.forcing import speak

from qwen3tts.backends.native import Native, open_native
from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.backends.native.decode.weights import store_for_kernels
from qwen3tts.backends.torch.runtime import stored_dtype
from qwen3tts.model.config import TalkerConfig
from qwen3tts.model.sampling import SamplingParams
from qwen3tts.model.talker import Talker
from qwen3tts.runtime.protocols import RowRequest
from qwen3tts.synthetic.weights import moments

DTYPES = ("bfloat16", "float16", "float32")
PARTS = (*DTYPES, "persistent")
GROUPS = 3
"""code groups: the code predictor's first pass, which has two columns a row, and one more"""
SIZES = (1, 8, 16, 20)
"""rows. Products have other kernels from 9 and from 17 on, attention from 5 and from 9 on"""
PROMPT = 70
"""positions of the longest prompt: more than go through the layers together, and than a page has"""
MAX_POSITIONS = 128
DRAWS = (
    SamplingParams(True, 0.9, 50, 0.95),  # ranked
    SamplingParams(True, 1.3, 0, 0.6),  # sorted in shared memory
    SamplingParams(True, 0.9, 150, 1.0),  # sorted by threads
    SamplingParams(False, 1.0, 0, 1.0),
)
PATIENCE_NS = 600 * 10**9
"""of the persistent kernel's blocks, instead of 2 seconds"""


def one_layer(config: TalkerConfig) -> TalkerConfig:
    """The talker has one layer, and hardly a text token: decoding reads none."""
    return replace(config, transformer=replace(config.transformer, num_layers=1), text_vocab_size=8)


def thin(config: TalkerConfig) -> TalkerConfig:
    """So has the code predictor, and a frame has few codes."""
    predictor = replace(config.code_predictor, transformer=replace(config.code_predictor.transformer, num_layers=1))
    return replace(one_layer(config), code_predictor=predictor, num_code_groups=GROUPS)


def draw(config: TalkerConfig, dtype: torch.dtype, device: torch.device) -> Talker:
    """A model with the scales of the synthetic checkpoints. It is drawn on the CPU, which nobody watches."""
    with torch.device("meta"):
        talker = Talker(config)
    talker.to_empty(device=device)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in talker.named_parameters():
        std, mean = moments(f"talker.{name}", tuple(parameter.shape))
        values = torch.empty(parameter.shape, dtype=torch.bfloat16).normal_(mean, std, generator=generator)
        parameter.data = values.to(stored_dtype(name, torch.bfloat16, dtype)).to(device)
    with torch.inference_mode():
        talker.eval().prepare(MAX_POSITIONS)
    return talker.requires_grad_(False)


def rows_of(talker: Talker, count: int, prompt: int) -> list[RowRequest]:
    """Rows of one frame. The first is the usual one and has the longest prompt, the next ones draw in other ways."""
    rows = []
    for i in range(count):
        params = DRAWS[i] if i < len(DRAWS) else DRAWS[0]
        length = prompt if i == 0 else 1 + i % 3
        rows.append(draw_row(talker, i, prompt=length, text=i % 2, frames=1, sampling=params))
    return rows


class Watched:
    """A model under the sanitizer."""

    def __init__(self, native: Native, config: TalkerConfig, dtype: torch.dtype) -> None:
        self.native, self.dtype = native, dtype
        self.talker = draw(config, dtype, native.device)
        store_for_kernels(self.talker)
        self.padding = torch.ones(config.transformer.hidden_size, dtype=dtype, device=native.device)

    def core(self, slots: int, **options: Any) -> NativeFrameDecoder:
        """A new core, whose pool never grows."""
        return NativeFrameDecoder(
            self.native, self.talker, self.padding, slots=slots, max_positions=MAX_POSITIONS,
            kv_bytes=None, kv_positions=MAX_POSITIONS * slots, frames_per_replay=1, **options,
        )  # fmt: skip

    def launched(self, sizes: Sequence[int]) -> Iterator[tuple[str, str]]:
        """(what was compared, "equal" or where the first difference is)."""
        rows, name = rows_of(self.talker, max(sizes), PROMPT), str(self.dtype).removeprefix("torch.")
        core = self.core(len(rows), graphs=False)
        together = speak(core, rows, 1)
        for size in sizes:
            if size < len(rows):
                yield (
                    f"{name}, {size} of {len(rows)} rows",
                    first_difference(together[:size], speak(core, rows[:size], 1)),
                )
        core.close()
        replayed = self.core(2)
        yield f"{name}, replayed", first_difference(together[:2], speak(replayed, rows[:2], 1))
        replayed.close()

    def persistent(self) -> Iterator[tuple[str, str]]:
        """The same of one row at a time; nothing where the kernel does not fit."""
        core = self.core(1, graphs=False)
        if core.persistent_problem:
            print("persistent code predictor:", core.persistent_problem, flush=True)
        else:
            core.launches.core.disturb_predictor(0, PATIENCE_NS)
            rows = rows_of(self.talker, len(DRAWS), 2)
            first = speak(core, rows[:1], 1)
            for row in rows[1:]:
                speak(core, [row], 1)
            yield "persistent, before and after other rows", first_difference(first, speak(core, rows[:1], 1))
        core.close()


def sanitize(
    native: Native, config: TalkerConfig, parts: Sequence[str], sizes: Sequence[int] = SIZES
) -> dict[str, str]:
    """What was compared -> "equal", or where the first difference is. Says how far it is as it goes."""
    found: dict[str, str] = {}
    started = time.perf_counter()

    def note(results: Iterator[tuple[str, str]]) -> None:
        for name, result in results:
            found[name] = result
            print(f"{time.perf_counter() - started:6.1f} s  {name}: {result}", flush=True)

    for name in DTYPES:
        if name in parts:
            note(Watched(native, thin(config), getattr(torch, name)).launched(sizes))
    if "persistent" in parts:
        note(Watched(native, one_layer(config), torch.bfloat16).persistent())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="0.6b")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--parts", default=",".join(PARTS))
    a = parser.parse_args()
    parts = a.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown parts {', '.join(map(repr, sorted(unknown)))}; there are {', '.join(PARTS)}")
    found = sanitize(open_native(a.backend), talker_config(a.preset), parts)
    good = bool(found) and set(found.values()) == {"equal"}
    print("all equal" if good else "NOT EQUAL")
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
