#!/usr/bin/env python3
"""The decode core over a long life on a GPU, in bf16 on models of the released sizes with random weights.

    python scripts/decode_life.py --preset 0.6b --json life.json [--quick]

bits: a row's codes are the same alone and among others, in any slot, for any number of frames at a time, replayed and
launched eagerly, with and without the persistent kernels. lives: in 64 slots rows of random lengths join, pause for
text, fail, are cancelled and end, until 20,000 frames of rows are made; every row's codes are those of its single run;
all pages come back and no memory is lost. hash: 10,000 replays of the same rows give one hash of codes and hidden
states. long: a row whose last frame is at position 8,191 has the same codes alone, replayed and beside others, and in
fp32 the logits of plain torch on the same codes. --quick: a tenth of it.
"""

import argparse
import gc
import json
import random
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from decode_checks.accuracy import summary
from decode_checks.bits import first_difference, replays_of_one_hash, same_bits
from decode_checks.drawing import MAX_POSITIONS, DrawnTalker, draw_row, draw_talker, drawn, talker_config
from decode_checks.forcing import KeptLogits, plain_logits, speak, speak_with_logits
from decode_checks.lives import Habits, Life, differences_alone

from qwen3tts.backends.native import Native, open_native
from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.backends.native.decode.part import BOUNDS
from qwen3tts.backends.native.decode.weights import store_for_kernels
from qwen3tts.model.config import TalkerConfig
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.model.sampling import SamplingParams
from qwen3tts.model.talker import Talker
from qwen3tts.runtime.protocols import RowRequest

SLOTS = 64
CHECKS = ("bits", "lives", "hash", "long")


def sampling(rng: random.Random) -> SamplingParams:
    """Every kind of draw."""
    if rng.random() < 0.2:
        return SamplingParams(False, 1.0, 0, 1.0)
    return SamplingParams(True, rng.choice([0.5, 0.9, 1.3]), rng.choice([0, 1, 20, 50]), rng.choice([1.0, 0.95, 0.6]))


class Checks:
    """On one model."""

    def __init__(
        self, native: Native, config: TalkerConfig, slots: int = SLOTS, longest: int = 150, prompt: int = 200
    ) -> None:
        """longest: frames of a row; prompt: positions of the longest one."""
        self.native, self.slots, self.longest, self.prompt = native, slots, longest, prompt
        self.config = config
        self.drawn = self.draw(torch.bfloat16)

    def draw(self, dtype: torch.dtype) -> DrawnTalker:
        """The model, in the form for kernels."""
        made = draw_talker(self.config, dtype, self.native.device)
        store_for_kernels(made.talker)
        return made

    def core(
        self,
        slots: int,
        *,
        frames_per_replay: int = 4,
        graphs: bool = True,
        positions: int = 1024,
        drawn: DrawnTalker | None = None,
        **options: Any,
    ) -> NativeFrameDecoder:
        """A new core, of this model if it is not told another."""
        drawn = drawn or self.drawn
        return NativeFrameDecoder(
            self.native, drawn.talker, drawn.padding, slots=slots, max_positions=positions, kv_bytes=None,
            kv_positions=positions * slots, frames_per_replay=frames_per_replay, graphs=graphs, **options,
        )  # fmt: skip

    def row(self, rng: random.Random, frames: int | None = None, **changes: Any) -> RowRequest:
        """A row that differs from others in everything; of so many frames, or of a random number."""
        lengths = [1, rng.randint(2, 1 + self.prompt // 3), rng.randint(2, self.prompt)]
        row = draw_row(
            self.drawn.talker, rng.randrange(2**40), prompt=rng.choice(lengths), text=rng.randint(0, self.prompt // 5),
            frames=frames or rng.randint(1, self.longest), sampling=sampling(rng), penalty=rng.choice([1.0, 1.05, 1.5]),
        )  # fmt: skip
        fields = vars(row) | {"predictor": sampling(rng), "part": rng.randrange(3)} | changes
        return RowRequest(**fields)

    def text(self, rng: random.Random) -> torch.Tensor:
        """More rows of text."""
        width = self.drawn.talker.config.transformer.hidden_size
        rows = drawn("text", (rng.randint(0, 30), width), 1.0, 0.0, rng.randrange(2**40), self.native.device)
        return rows.to(self.drawn.talker.dtype)

    def bits(self, frames: int) -> dict[str, str]:
        """Company and form."""
        rng = random.Random(1)
        rows = [self.row(rng, frames) for _ in range(self.slots)]
        core = self.core(1, graphs=False)
        problem = core.persistent_problem
        core.close()
        options = [] if problem else [{"persistent_predictor": on} for on in (False, True)]
        found = same_bits(self.core, rows, options)
        print(f"persistent code predictor: {problem or 'in use'}", flush=True)
        return found

    def lives(self, row_frames: int, seed: int = 2) -> dict[str, Any]:
        """A long life, then every row by itself."""
        core, rng = self.core(self.slots), random.Random(seed)
        speak(core, [self.row(random.Random(0), 2)], 2)  # what is allocated at the first use is no growth
        before = self.memory()
        habits = Habits(most_joins=2 + self.slots // 10, most_frames=12, cancelled=0.02, chosen=0.3, broken=0.03)
        life = Life(
            core, rng, lambda rng: self.row(rng, text_complete=rng.random() < 0.7), self.text, habits
        )  # fmt: skip
        most = 0
        while life.row_frames < row_frames:
            life.step()
            most = max(most, len(life.open))
        life.finish()
        grown, used = self.memory() - before, core.pages.used
        wrong = differences_alone(core, life.rows, self.slots, core.frames_per_replay)
        found = {
            "row_frames": life.row_frames, "rows": len(life.rows), "most_rows_at_once": most,
            "ends": dict(Counter(row.end for row in life.rows)), "grown_bytes": grown, "pages_left": used,
            "free_slots": core.free_slots(), "differences": wrong,
        }  # fmt: skip
        core.close()
        fine = not wrong and used == 0 and found["free_slots"] == self.slots and grown <= 0
        return found | {"equal": fine}

    def long(self, frames: int, positions: int = MAX_POSITIONS) -> dict[str, Any]:
        """The last positions of a long row."""

        def long_row(talker: Talker, seed: int) -> RowRequest:
            usual = SamplingParams(True, 0.9, 50, 1.0)
            return draw_row(talker, seed, prompt=positions - frames, text=frames // 2, frames=frames, sampling=usual)

        rng, row, other = random.Random(4), *(long_row(self.drawn.talker, seed) for seed in (4, 5))
        core = self.core(1, frames_per_replay=1, graphs=False, positions=positions)
        alone = speak(core, [row], 1)
        core.close()
        core = self.core(4, positions=positions)
        company = speak(core, [self.row(rng, frames), row, other, self.row(rng, frames)], frames)
        found: dict[str, Any] = {
            "positions": positions,
            "replayed": first_difference(alone, speak(core, [row], frames)),
            "beside others": first_difference(alone, company[1:2]),
        }
        core.close()
        wide = self.draw(torch.float32)
        row = long_row(wide.talker, 4)
        kept, plain = (KeptLogits(wide.talker, 1, frames) for _ in range(2))
        core = self.core(1, graphs=False, positions=positions, drawn=wide)
        codes = speak_with_logits(core, wide.talker, [row], kept)
        core.close()
        with exact_arithmetic(self.native.device):
            plain_logits(wide.talker, wide.padding, [row], codes, plain)
        distances = summary(kept, plain)
        equal = found["replayed"] == found["beside others"] == "equal"
        near = all(distances[f"{name}_rms"] < BOUNDS[torch.float32] for name in ("talker", "predictor"))
        return found | distances | {"equal": equal and near}

    def memory(self) -> int:
        """Bytes of the card that this process's tensors have; nothing else is allocated between load and close."""
        if self.native.device.type != "cuda":
            return 0
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated(self.native.device)

    def hash(self, replays: int, frames: int = 25) -> list[dict[str, Any]]:
        """Many replays of 1, 8 and all rows."""
        found = []
        for size, part in ((1, 0.4), (8, 0.4), (self.slots, 0.2)):
            core, rng = self.core(size, frames_per_replay=1), random.Random(3)
            rows = [self.row(rng, frames) for _ in range(size)]
            found.append(replays_of_one_hash(core, rows, int(replays * part)))
            core.close()
        return found


def run(checks: Checks, chosen: list[str], quick: bool) -> tuple[dict[str, Any], bool]:
    """-> what was found, and whether all of it is as it must be."""
    found: dict[str, Any] = {}
    for name in chosen:
        started = time.perf_counter()
        if name == "bits":
            found["bits"] = checks.bits(8 if quick else 24)
        elif name == "lives":
            found["lives"] = checks.lives(2_000 if quick else 20_000)
        elif name == "hash":
            found["hash"] = checks.hash(1_000 if quick else 10_000)
        else:
            found["long"] = checks.long(10 if quick else 100)
        print(name, found[name], f"{time.perf_counter() - started:.1f} s", flush=True)
    good = all(value == "equal" for value in found.get("bits", {}).values())
    good &= all(found.get(name, {"equal": True})["equal"] for name in ("lives", "long"))
    good &= all(len(entry["hashes"]) == 1 for entry in found.get("hash", []))
    return found, good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="0.6b,1.7b")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--checks", default=",".join(CHECKS))
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--talker-layers", type=int, help="instead of all")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    checks = a.checks.split(",")
    if unknown := set(checks) - set(CHECKS):
        parser.error(f"unknown checks {', '.join(map(repr, sorted(unknown)))}; there are {', '.join(CHECKS)}")
    native, found, good = open_native(a.backend), {}, True
    for preset in a.preset.split(","):
        config = talker_config(preset)
        if a.talker_layers:
            config = replace(config, transformer=replace(config.transformer, num_layers=a.talker_layers))
        entry, fine = run(Checks(native, config, a.slots), checks, a.quick)
        found[preset], good = entry, good and fine
        if a.json:
            a.json.write_text(json.dumps(found, indent=1) + "\n")
    print("all equal" if good else "NOT EQUAL")
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
