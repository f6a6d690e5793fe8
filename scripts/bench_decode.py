#!/usr/bin/env python3
"""Checks and times the decode core on a GPU, on full-size weights that are drawn there (no checkpoint is needed).

    python scripts/bench_decode.py --json out.json [--preset 0.6b,1.7b] [--rows 1,8,16,32,64] [--backend cuda]

Checked first: codes in fp32 equal to the plain torch decoder's on the same card (greedy and sampled); in bf16 a row's
codes are the same alone and among others, in any slot, with 1 and with 4 frames a replay, replayed and eager.

Timed then, in bf16 with the sampling that is the default: `advance`, 100 frames a run after one run of warm-up, with
contexts that grow from 200 to 700 positions; CUDA events around the call, so all launches, sampling and the copies of
the codes are inside, the codec is not. Prefill: `admit` of one prompt of 40 rows, by events and by the host's clock.
--launched: also one row whose code predictor is launched kernel by kernel, as where it cannot be one kernel. Cores are
built with the graphs of their own number of rows alone; scripts/bench_decode_sizes.py times page sizes and row buckets.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from decode_checks.bits import first_difference
from decode_checks.near import near_picks
from decode_checks.timing import frame_milliseconds, free_bytes, machine, timed

from qwen3tts.backends.native import Native, open_native
from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.backends.native.decode.weights import store_for_kernels
from qwen3tts.backends.torch.frame_decoder import TorchFrameDecoder
from qwen3tts.backends.torch.picking import MIN_TOKENS, RowPicker
from qwen3tts.backends.torch.runtime import stored_dtype
from qwen3tts.checkpoint.config import parse_config
from qwen3tts.checkpoint.json_object import JsonObject
from qwen3tts.model.config import TalkerConfig
from qwen3tts.model.philox import random_words
from qwen3tts.model.sampling import SamplingParams, process_talker_logits
from qwen3tts.model.talker import Talker
from qwen3tts.runtime.protocols import RowRequest
from qwen3tts.synthetic.configs import build_configs

TIE = 1e-4
"""a pick nearer than this to the other one, in logits, is decided by the order of sums"""
TEXT_ROWS = 1000
"""of the text table, which decoding does not read"""
CONTEXT, RUN, RUNS = 200, 100, 5
PROMPT, PROMPT_RUNS = 40, 10


def talker_config(preset: str) -> TalkerConfig:
    """The sizes of a released model."""
    ids = {"vocab": TEXT_ROWS, "assistant": 1, "im_end": 2, "im_start": 3, "tts_bos": 4, "tts_eos": 5, "tts_pad": 6}
    config, codec = build_configs(preset, "custom_voice", ids, "4.57.2")
    parsed = parse_config(JsonObject("config.json", "", config), JsonObject("codec", "", codec))
    return parsed.talker


def draw_talker(config: TalkerConfig, dtype: torch.dtype, device: torch.device, seed: int = 1) -> Talker:
    """Random weights, all of them values that bf16 has; the end of speech is never drawn."""
    with torch.device("meta"):
        talker = Talker(config)
    talker.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in talker.named_parameters():
        drawn = torch.ones_like(parameter)
        if parameter.ndim > 1:
            scale = 0.5 if "embedding" in name else (2.5 if "head" in name else 1.0) / parameter.shape[-1] ** 0.5
            drawn = torch.randn(parameter.shape, generator=generator, device=device) * scale
        elif name.endswith("bias"):
            drawn = torch.zeros_like(parameter)
        parameter.data = drawn.bfloat16().to(stored_dtype(name, torch.bfloat16, dtype))
    talker.codec_head.weight.data[config.codec_eos_id] = 0
    with torch.inference_mode():
        talker.eval().prepare(8192)
    return talker.requires_grad_(False)


def requests(talker: Talker, count: int, frames: int, *, prompt: int, sampled: bool = True) -> list[RowRequest]:
    """Rows with prompts and texts of their own, from embeddings of random size."""
    hidden, made = talker.config.transformer.hidden_size, []
    for i in range(count):
        generator = torch.Generator(talker.device).manual_seed(100 + i)
        length = prompt if count == 1 else prompt + i % 3
        x = torch.randn(length + 20, hidden, generator=generator, device=talker.device).to(talker.dtype)
        params = SamplingParams(sampled, 0.9, 50, 1.0)
        made.append(
            RowRequest(
                prefill=x[:length],
                trailing=x[length:],
                talker=params,
                predictor=params,
                repetition_penalty=1.05 if sampled else 1.0,
                seed=7 + i,
                part=0,
                max_frames=frames,
            )
        )
    return made


def speak(decoder: Any, rows: list[RowRequest], step: int, places: list[int] | None = None) -> list[torch.Tensor]:
    """All frames of the rows. places: fill other slots in between, which are released at once."""
    slots: list[Any] = []
    fillers: list[Any] = []
    if places is None:
        slots = decoder.admit(rows)
    else:
        for row, place in zip(rows, places, strict=True):
            while len(fillers) + len(slots) < place:
                fillers += decoder.admit([dataclasses.replace(row, max_frames=1)])
            slots += decoder.admit([row])
        for slot in fillers:
            decoder.release(slot)
    codes: dict[Any, list[torch.Tensor]] = {slot: [] for slot in slots}
    for _ in range(0, rows[0].max_frames, step):
        batch = decoder.advance(step, slots)
        for slot, made, count in zip(batch.slots, batch.codes, batch.counts, strict=True):
            codes[slot].append(made[:count])
    for slot in slots:
        decoder.release(slot)
    return [torch.cat(parts) for parts in codes.values()]


class RecordingPicker(RowPicker):
    """Keeps the logits of one pick, as they are drawn from."""

    def __init__(self, talker: Talker, frame: int, codebook: int) -> None:
        super().__init__(talker)
        self.at, self.logits = (frame, codebook), torch.empty(0)

    def predictor(self, rows: Any, codebook: int, logits: torch.Tensor) -> torch.Tensor:
        """See RowPicker."""
        if (rows[0].frames, codebook) == self.at:
            self.logits = logits[0].clone()
        return super().predictor(rows, codebook, logits)

    def talker(self, rows: Any, logits: torch.Tensor) -> torch.Tensor:
        """See RowPicker."""
        row = rows[0]
        if (row.frames, 0) == self.at:
            too_early = self._eos_id if row.frames < MIN_TOKENS else None
            penalty = row.request.repetition_penalty
            self.logits = process_talker_logits(logits[0], row.seen, penalty, self._suppressed, too_early)
        return super().talker(rows, logits)


def distance(logits: torch.Tensor, params: SamplingParams, word: int, codes: tuple[int, int]) -> float:
    """How far a pick is from being another one, in logits; infinite if they are not next to each other."""
    near = near_picks(logits.float().cpu(), params, word, codes[0])
    return next((found.distance for found in near if found.code == codes[1]), float("inf"))


class Bench:
    """One model on one card."""

    def __init__(self, native: Native, config: TalkerConfig) -> None:
        self.native, self.config, self.device = native, config, native.device

    def core(
        self, talker: Talker, slots: int, *, depth: int = 4, graphs: bool = True, **options: Any
    ) -> NativeFrameDecoder:
        """A decode core with room for contexts of 1,000 positions."""
        padding = torch.zeros(self.config.transformer.hidden_size, device=self.device, dtype=talker.dtype)
        return NativeFrameDecoder(
            self.native, talker, padding, slots=slots, max_positions=2048, kv_bytes=None, kv_positions=1024 * slots,
            frames_per_replay=depth, graphs=graphs, **options,
        )  # fmt: skip

    def check_fp32(self, frames: int, rows: int = 8) -> dict[str, str]:
        """Codes against the plain torch decoder on the same card."""
        talker, found = draw_talker(self.config, torch.float32, self.device), {}
        padding = torch.zeros(self.config.transformer.hidden_size, device=self.device)
        plain = TorchFrameDecoder(talker, padding, slots=rows, max_positions=2048, kv_bytes=None)
        wanted = {
            kind: speak(plain, requests(talker, rows, frames, prompt=30, sampled=kind == "sampled"), frames)
            for kind in ("greedy", "sampled")
        }
        form, made = store_for_kernels(talker), {}
        core = self.core(talker, rows, graphs=False)
        for kind in wanted:
            made[kind] = speak(core, requests(talker, rows, frames, prompt=30, sampled=kind == "sampled"), frames)
        form.restore()
        for kind, codes in wanted.items():
            asked = requests(talker, rows, frames, prompt=30, sampled=kind == "sampled")
            ties = [
                self.tie(plain, talker, row, a, b)
                for row, a, b in zip(asked, codes, made[kind], strict=True)
                if not torch.equal(a, b)
            ]
            picks = sum(len(a) for a in codes) * 16
            found[kind] = "equal" if not ties else f"{len(ties)} of {rows} rows differ ({picks} picks): {ties}"
            if ties and all(tie["distance"] < TIE for tie in ties) and len(ties) <= 2:
                found[kind] = "equal"
                found[f"{kind}, ties"] = "equal"
                print(f"{kind}: ties {ties}", flush=True)
        return found

    def tie(
        self, plain: TorchFrameDecoder, talker: Talker, row: RowRequest, a: torch.Tensor, b: torch.Tensor
    ) -> dict[str, Any]:
        """Where two runs of a row part, and how far that pick is from the other one."""
        frame, book = (int(i) for i in (a[: len(b)] != b[: len(a)]).nonzero()[0])
        before, plain.picker = plain.picker, RecordingPicker(talker, frame, book)
        try:
            speak(plain, [dataclasses.replace(row, max_frames=frame + 2)], 1)
            logits = plain.picker.logits
        finally:
            plain.picker = before
        word = int(random_words(row.seed, frame, 1, 16)[0, book])
        params = row.predictor if book else row.talker
        codes = int(a[frame, book]), int(b[frame, book])
        return {"frame": frame, "codebook": book, "distance": distance(logits, params, word, codes)}

    def check_bf16(self, frames: int) -> dict[str, str]:
        """A row's codes in every company and form."""
        talker = draw_talker(self.config, torch.bfloat16, self.device)
        store_for_kernels(talker)
        rows = requests(talker, 64, frames, prompt=40)
        many, one = self.core(talker, 64), self.core(talker, 1)
        eager = self.core(talker, 64, graphs=False)
        together = speak(many, rows, frames)
        alone = [speak(one, [rows[i]], frames)[0] for i in (0, 5, 17, 63)]
        found = {
            "alone and among 64": first_difference([together[i] for i in (0, 5, 17, 63)], alone),
            "8 and 64": first_difference(together[:8], speak(many, rows[:8], frames)),
            "20 and 64": first_difference(together[:20], speak(many, rows[:20], frames)),
            "other slots": first_difference([together[5]], speak(many, [rows[5]], frames, [37])),
            "1 and 4 frames a replay": first_difference(together[:8], speak(many, rows[:8], 1)),
            "eager and replayed": first_difference(together, speak(eager, rows, frames)),
        }
        again = [speak(one, [rows[0]], frames)[0] for _ in range(20)]
        found["20 times"] = first_difference([together[0]] * 20, again)
        return found

    def speed(self, talker: Talker, rows: int, depth: int, *, launched: bool = False) -> dict[str, Any]:
        """ms per frame over growing contexts. launched: without the predictor of one row as one kernel."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        free, started = free_bytes(self.device), time.perf_counter()
        core = self.core(talker, rows, depth=depth, row_buckets=(), persistent_predictor=not launched)
        built, used = time.perf_counter() - started, free - free_bytes(self.device)
        slots = core.admit(requests(talker, rows, RUN * (RUNS + 1) + 1, prompt=CONTEXT - RUN))
        times = [frame_milliseconds(core, slots, RUN) for _ in range(RUNS + 1)][1:]
        for slot in slots:
            core.release(slot)
        prefill = self.prefill(core, talker) if rows == 1 else None
        launches = {
            f"{g.rows} x {g.frames}" if g.frames else f"prompts of {g.rows}": g.launches for g in core.captured
        }
        persistent = (core.persistent_problem or "in use") if rows == 1 else "for one row"
        core.close()
        return {
            "rows": rows, "frames_per_replay": depth, "ms_per_frame": round(statistics.median(times), 4),
            "ms_per_frame_runs": [round(t, 4) for t in times], "persistent_predictor": persistent, "launches": launches,
            "core_seconds": round(built, 2), "core_megabytes": round(used / 1e6, 1), "prefill": prefill,
        }  # fmt: skip

    def prefill(self, core: NativeFrameDecoder, talker: Talker) -> dict[str, float]:
        """ms of one prompt of 40 rows, and of a prompt and the first frame's codes on the host."""
        device_ms, host_ms, first_ms = [], [], []
        for run in range(2 + PROMPT_RUNS):
            row = requests(talker, 1, 4, prompt=PROMPT)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
            ms, slots = timed(self.device, lambda row=row: core.admit(row))  # type: ignore[misc]
            admitted = time.perf_counter()
            core.advance(1, slots)
            done = time.perf_counter()
            core.release(slots[0])
            if run > 1:
                device_ms.append(ms)
                host_ms.append(1e3 * (admitted - started))
                first_ms.append(1e3 * (done - started))
        names = ("events_ms", "host_ms", "first_codes_ms")
        return {n: round(statistics.median(v), 3) for n, v in zip(names, (device_ms, host_ms, first_ms), strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cuda", choices=("cuda", "hip"))
    parser.add_argument("--preset", default="0.6b,1.7b")
    parser.add_argument("--rows", default="1,8,16,32,64")
    parser.add_argument("--depths", default="4", help="frames per replay")
    parser.add_argument("--launched", action="store_true", help="one row without the persistent code predictor, too")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--check-frames", type=int, default=24)
    parser.add_argument("--commit", help="named in the JSON")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    native = open_native(a.backend)
    result: dict[str, Any] = {"what": __doc__, "machine": machine(a.commit), "models": {}}
    for preset in a.preset.split(","):
        bench = Bench(native, talker_config(preset))
        entry: dict[str, Any] = {"speed": []}
        result["models"][preset] = entry
        if not a.no_check:
            for name in ("fp32", "bf16"):
                started = time.perf_counter()
                check = bench.check_fp32 if name == "fp32" else bench.check_bf16
                entry[name] = check(a.check_frames)
                print(preset, name, entry[name], f"{time.perf_counter() - started:.1f} s", flush=True)
        talker = draw_talker(bench.config, torch.bfloat16, bench.device)
        store_for_kernels(talker)
        depths = [int(depth) for depth in a.depths.split(",")]
        asked = [(int(rows), depth, False) for rows in a.rows.split(",") for depth in depths]
        asked += [(1, depth, True) for depth in depths if a.launched]
        for rows, depth, launched in asked:
            entry["speed"].append(bench.speed(talker, rows, depth, launched=launched))
            print(preset, entry["speed"][-1], flush=True)
        if a.json:
            a.json.write_text(json.dumps(result, indent=1) + "\n")
    checks = [m.get(kind, {}) for m in result["models"].values() for kind in ("fp32", "bf16")]
    raise SystemExit(1 if any(found != "equal" for check in checks for found in check.values()) else 0)


if __name__ == "__main__":
    main()
