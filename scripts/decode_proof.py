#!/usr/bin/env python3
"""Codes of the decode core in fp32 against the specification, on models of the released sizes with random weights.

    python scripts/decode_proof.py make --preset 0.6b --out specification-0.6b.npz
    python scripts/decode_proof.py compare specification-0.6b.npz specification-1.7b.npz --json compared.json
    python scripts/decode_proof.py explain --preset 0.6b --json explained.json

make: codes of the plain decoder on the CPU, 10 seeds greedy and sampled, 100 frames each, and what every pick was
near to; a quarter of an hour per model. compare: the core on a GPU makes the same rows. A row may part from the
specification where its pick is less than 1e-4 in logits from the core's; it then goes on with the specification's code.
More than two such ties in ten rows, or any other difference, is a failure. explain: core, plain decoder and a decoder
in float64 on the core's codes, all on the GPU: how exact the logits of each are, and every pick that comes out
differently.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from decode_checks.accuracy import Picks, described, in_float64, partings, summary, widened
from decode_checks.compare import compare
from decode_checks.drawing import DrawnTalker, draw_talker, talker_config
from decode_checks.forcing import KeptLogits, plain_logits, speak_with_logits
from decode_checks.specification import SEEDS, Specification, make_specification, specification_rows

from qwen3tts.backends.native import Native, open_native
from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.backends.native.decode.weights import store_for_kernels
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.runtime.protocols import RowRequest


def say(text: str) -> None:
    """A line at once."""
    print(text, flush=True)


def core_of(
    native: Native, drawn: DrawnTalker, slots: int, *, graphs: bool = False, projections: bool = False
) -> NativeFrameDecoder:
    """A core for rows of a few hundred positions. The talker is in the form for kernels from now on."""
    store_for_kernels(drawn.talker)
    return NativeFrameDecoder(
        native, drawn.talker, drawn.padding, slots=slots, max_positions=1024, kv_bytes=None,
        kv_positions=1024 * slots, frames_per_replay=4, graphs=graphs, projections=projections,
    )  # fmt: skip


def make(a: argparse.Namespace) -> int:
    """The specification's codes into a file."""
    torch.set_num_threads(a.threads)
    drawn = draw_talker(talker_config(a.preset), torch.float32, torch.device("cpu"))
    say(f"{a.preset}: checksum {drawn.checksum}")
    made = make_specification(drawn, a.preset, a.frames, SEEDS[: a.seeds], say)
    made.save(a.out)
    say(f"{a.out}: {made.codes.shape[0]} rows, {len(made.distances)} near picks, {made.facts}")
    return 0


def compare_all(a: argparse.Namespace) -> int:
    """The core against specifications."""
    native, found, failed = open_native(a.backend), {}, False
    for path in a.specifications:
        started, specification = time.perf_counter(), Specification.load(path)
        drawn = draw_talker(talker_config(specification.preset), torch.float32, native.device)
        if drawn.checksum != specification.checksum:
            raise SystemExit(
                f"{path}: the model drawn here has the checksum {drawn.checksum}, the specification's "
                f"{specification.checksum}: values are drawn differently here"
            )
        core = core_of(native, drawn, len(specification.codes), graphs=a.graphs, projections=a.projections)
        compared = compare(core, drawn.talker, specification, say)
        core.close()
        found[specification.preset] = compared.summary() | {"seconds": round(time.perf_counter() - started, 1)}
        failed |= compared.failed
        say(f"{specification.preset}: {found[specification.preset]}")
    write(a.json, found)
    return int(failed)


def explain(a: argparse.Namespace) -> int:
    """How exact each implementation's logits are."""
    native = open_native(a.backend)
    drawn, rows = explained_rows(a, native)
    core = core_of(native, drawn, len(rows))
    frames = rows[0].max_frames
    kept = {name: KeptLogits(drawn.talker, len(rows), frames) for name in ("core", "plain")}
    wide = KeptLogits(drawn.talker, len(rows), frames, torch.float64)
    codes = speak_with_logits(core, drawn.talker, rows, kept["core"])
    core.close()
    plain_logits(drawn.talker, drawn.padding, rows, codes, kept["plain"])
    with exact_arithmetic(native.device):
        doubled = in_float64(drawn.talker)
    plain_logits(doubled, drawn.padding.double(), widened(rows, torch.float64), codes, wide)
    found: dict[str, Any] = {name: summary(logits, wide) for name, logits in kept.items()}
    found |= {"rows": len(rows), "frames": frames, "picks": len(rows) * frames * len(kept["core"].values[0, 0])}
    for name in kept:
        say(f"{name}: relative L2 against float64 {found[name]}")
    differing = partings(Picks(drawn.talker, rows, codes), kept | {"float64": wide}, "float64")
    found["partings"] = [described(parting) for parting in differing]
    for parting in found["partings"]:
        say(f"parts: {parting}")
    write(a.json, found)
    return 0


def explained_rows(a: argparse.Namespace, native: Native) -> tuple[DrawnTalker, list[RowRequest]]:
    """The specification's rows, or those that bench_decode.py checks."""
    config, device = talker_config(a.preset), native.device
    if a.rows == "bench":
        import bench_decode

        talker = bench_decode.draw_talker(config, torch.float32, device)
        padding = torch.zeros(config.transformer.hidden_size, device=device)
        return DrawnTalker(talker, padding, 0), bench_decode.requests(talker, 8, a.frames, prompt=30, sampled=True)
    drawn = draw_talker(config, torch.float32, device)
    return drawn, specification_rows(drawn.talker, a.frames, SEEDS[: a.seeds])


def write(path: Path | None, found: dict[str, Any]) -> None:
    """As JSON."""
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("make", help=make.__doc__)
    command.set_defaults(run=make)
    command.add_argument("--preset", required=True, choices=("0.6b", "1.7b"))
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--frames", type=int, default=100)
    command.add_argument("--seeds", type=int, default=len(SEEDS))
    command.add_argument("--threads", type=int, default=1)
    command = commands.add_parser("compare", help=compare_all.__doc__)
    command.set_defaults(run=compare_all)
    command.add_argument("specifications", type=Path, nargs="+")
    command.add_argument("--graphs", action="store_true", help="replayed, not launch by launch")
    command.add_argument("--projections", action="store_true", help="input tables by the core's own products")
    command.add_argument("--backend", default="cuda", choices=("cuda", "hip"))
    command.add_argument("--json", type=Path)
    command = commands.add_parser("explain", help=explain.__doc__)
    command.set_defaults(run=explain)
    command.add_argument("--preset", required=True, choices=("0.6b", "1.7b"))
    command.add_argument("--rows", choices=("specification", "bench"), default="specification")
    command.add_argument("--frames", type=int, default=24)
    command.add_argument("--seeds", type=int, default=4)
    command.add_argument("--backend", default="cuda", choices=("cuda", "hip"))
    command.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    raise SystemExit(arguments.run(arguments))


if __name__ == "__main__":
    main()
