#!/usr/bin/env python3
"""Times what two sizes of the decode core cost: positions in a page, and the numbers of rows that have a graph.

    python scripts/bench_decode_sizes.py --json out.json [--preset 0.6b,1.7b] [--what pages,buckets] [--backend cuda]

Random full-size weights drawn on the card, bf16, the sampling that is the default, 4 frames a replay; every row has a
random context of 200 to 700 positions, to which it is taken back after every run, so all runs do the same work.

Pages: a core per page size, in turns; what the rows' pages hold beyond the positions that their lives need is wasted.
Row buckets: a launch covers as many rows as the least bucket has that holds all, and what more it covers is idle. One
core has a graph for every number of rows; sets of buckets are compared by what each number of rows takes in its bucket
over what it takes alone, and by the time and memory of their graphs (one and 4 frames a replay).
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from decode_checks.drawing import draw_row, draw_talker, talker_config
from decode_checks.timing import Rewind, frame_milliseconds, free_bytes, machine

from qwen3tts.backends.native import Native, open_native
from qwen3tts.backends.native.decode.capture import BUCKETS, bucket_for, buckets
from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.backends.native.decode.state import PAGE
from qwen3tts.backends.native.decode.weights import store_for_kernels
from qwen3tts.backends.torch.frame_decoder import positions_needed
from qwen3tts.model.config import TalkerConfig
from qwen3tts.model.kv_cache import kv_bytes_per_position
from qwen3tts.model.sampling import SamplingParams
from qwen3tts.runtime.protocols import RowRequest, Slot

FRAMES_PER_REPLAY = 4
SETS = {
    "in use": BUCKETS,
    "powers of two": (1, 2, 4, 8, 16, 32, 64),
    "every 8": (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64),
    "finer": (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64),
    "every number": tuple(range(1, 65)),
}


class Sizes:
    """One model on one card."""

    def __init__(
        self, native: Native, config: TalkerConfig, *, slots: int = 64, contexts: tuple[int, int] = (200, 700)
    ) -> None:
        self.native, self.slots, self.contexts = native, slots, contexts
        self.drawn = draw_talker(config, torch.bfloat16, native.device, positions=2 * contexts[1])
        store_for_kernels(self.drawn.talker)

    def rows(self, frames: int) -> list[RowRequest]:
        """One for each slot; the prompt is its context."""
        rng, talker = random.Random(1), self.drawn.talker
        lengths = [rng.randint(*self.contexts) for _ in range(self.slots)]
        default = SamplingParams(True, 0.9, 50, 1.0)
        return [
            draw_row(talker, i, prompt=length, text=20, frames=frames, sampling=default)
            for i, length in enumerate(lengths)
        ]

    def core(self, page: int, row_buckets: Sequence[int], needs: Sequence[int]) -> NativeFrameDecoder:
        """A core with pages for rows that need so many positions."""
        pages = sum(-(-need // page) for need in needs)
        return NativeFrameDecoder(
            self.native, self.drawn.talker, self.drawn.padding, slots=self.slots, max_positions=2 * self.contexts[1],
            kv_bytes=None, kv_positions=pages * page, frames_per_replay=FRAMES_PER_REPLAY, page=page,
            row_buckets=row_buckets,
        )  # fmt: skip

    def pages(self, sizes: Sequence[int], counts: Sequence[int], frames: int, runs: int) -> list[dict[str, Any]]:
        """Each page size: ms a frame at these numbers of rows, medians of runs after one of warm-up."""
        counts = [count for count in counts if count <= self.slots]
        rows = self.rows(frames + 1)  # so that none ends
        needs = [positions_needed(row) for row in rows]
        made: list[tuple[NativeFrameDecoder, list[Slot], Rewind]] = []
        for page in sizes:
            core = self.core(page, counts, needs)
            made.append((core, core.admit(rows), Rewind(core)))
        times: dict[tuple[int, int], list[float]] = {(page, count): [] for page in sizes for count in counts}
        for run in range(runs + 1):
            for count in counts:
                for page, (core, slots, rewind) in zip(sizes, made, strict=True):
                    ms = frame_milliseconds(core, slots[:count], frames)
                    rewind()
                    if run:
                        times[page, count].append(ms)
        position = kv_bytes_per_position(self.drawn.talker.config.transformer, torch.bfloat16)
        found = []
        for page, (core, _, _) in zip(sizes, made, strict=True):
            wasted = core.pages.used * page - sum(needs)
            median = {str(count): round(statistics.median(times[page, count]), 4) for count in counts}
            spread = {str(count): [round(t, 4) for t in times[page, count]] for count in counts}
            found.append({
                "page": page, "ms_per_frame": median, "ms_per_frame_runs": spread, "rows": self.slots,
                "positions_needed": sum(needs), "positions_wasted": wasted,
                "megabytes_wasted": round(wasted * position / 1e6, 1),
                "table_bytes": core.state.table.nbytes,
            })  # fmt: skip
            core.close()
        return found

    def buckets(self, sets: dict[str, Sequence[int]], frames: int, runs: int) -> dict[str, Any]:
        """Every number of rows alone, and what sets of buckets make of it."""
        sets = {name: buckets(self.slots, wanted) for name, wanted in sets.items()}
        numbers = range(1, self.slots + 1)
        rows = self.rows(frames + 1)
        core = self.core(PAGE, list(numbers), [positions_needed(row) for row in rows])
        slots, chosen = core.admit(rows), core.launches.buckets
        rewind = Rewind(core)
        pairs = {(count, count) for count in numbers}
        pairs |= {(bucket_for(count, wanted), count) for wanted in sets.values() for count in numbers}
        times: dict[tuple[int, int], list[float]] = {pair: [] for pair in sorted(pairs)}
        for run in range(runs + 1):
            for (bucket, count), kept in times.items():
                core.launches.buckets = (bucket,)
                ms = frame_milliseconds(core, slots[:count], frames)
                rewind()
                if run:
                    kept.append(ms)
        core.launches.buckets = chosen
        median = {pair: statistics.median(kept) for pair, kept in times.items()}
        found = {
            "ms_per_frame": {str(count): round(median[count, count], 4) for count in numbers},
            "in_a_bucket": {f"{count} in {bucket}": round(ms, 4) for (bucket, count), ms in median.items()},
            "sets": {name: self._cost(core, wanted, median) for name, wanted in sets.items()},
        }
        core.close()
        return found

    def _cost(
        self, core: NativeFrameDecoder, wanted: Sequence[int], median: dict[tuple[int, int], float]
    ) -> dict[str, Any]:
        """Of a set of buckets."""
        numbers = range(1, self.slots + 1)
        over = {count: median[bucket_for(count, wanted), count] / median[count, count] for count in numbers}
        worst = max(over, key=lambda count: over[count])
        graphs = [graph for graph in core.captured if graph.frames and graph.rows in wanted]
        return {
            "buckets": list(wanted), "graphs": len(graphs),
            "capture_seconds": round(sum(graph.seconds for graph in graphs), 6),
            "graph_megabytes": round(sum(graph.nbytes for graph in graphs) / 1e6, 1),
            "mean_over_alone": round(statistics.mean(over.values()), 4),
            "worst_over_alone": [worst, round(over[worst], 4)],
        }  # fmt: skip


def numbers(text: str) -> list[int]:
    """1,2,3"""
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cuda", choices=("cuda", "hip"))
    parser.add_argument("--preset", default="0.6b,1.7b")
    parser.add_argument("--what", default="pages,buckets")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--page-sizes", type=numbers, default=[16, 32, 64, 128], help="powers of two from 8 up")
    parser.add_argument("--rows", type=numbers, help="for page sizes; 1,8,32,64 as far as there are slots")
    parser.add_argument("--frames", type=int, default=24, help="in a run of page sizes")
    parser.add_argument("--bucket-frames", type=int, default=8, help="in a run of buckets")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--bucket-runs", type=int, default=3)
    parser.add_argument("--commit", help="named in the JSON")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    if unknown := set(a.what.split(",")) - {"pages", "buckets"}:
        parser.error(f"--what: {', '.join(sorted(unknown))}; there are pages and buckets")
    a.rows = a.rows or [count for count in (1, 8, 32, 64) if count <= a.slots]
    if not a.rows or not 1 <= min(a.rows) <= max(a.rows) <= a.slots:
        parser.error(f"--rows is numbers from 1 to --slots, {a.slots}")
    if min(a.frames, a.bucket_frames, a.runs, a.bucket_runs) < 1:
        parser.error("--frames, --bucket-frames, --runs and --bucket-runs are 1 or more")
    if a.json and not a.json.parent.is_dir():
        parser.error(f"there is no folder {a.json.parent} for --json")
    native = open_native(a.backend)
    result: dict[str, Any] = {"what": __doc__, "machine": machine(a.commit), "models": {}}
    for preset in a.preset.split(","):
        free, entry = free_bytes(native.device), dict[str, Any]()
        result["models"][preset] = entry
        sizes = Sizes(native, talker_config(preset), slots=a.slots)
        print(preset, f"weights drawn, {(free - free_bytes(native.device)) / 1e9:.2f} GB", flush=True)
        if "pages" in a.what.split(","):
            entry["pages"] = sizes.pages(a.page_sizes, a.rows, a.frames, a.runs)
            for page in entry["pages"]:
                print(preset, {key: value for key, value in page.items() if key != "ms_per_frame_runs"}, flush=True)
        if "buckets" in a.what.split(","):
            entry["buckets"] = sizes.buckets(dict(SETS), a.bucket_frames, a.bucket_runs)
            print(preset, entry["buckets"]["ms_per_frame"], flush=True)
            for name, cost in entry["buckets"]["sets"].items():
                print(preset, f"{name}: {cost}", flush=True)
        del sizes
        if a.json:
            a.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
