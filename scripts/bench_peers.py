#!/usr/bin/env python3
"""Times this project beside the official package and faster-qwen3-tts on the same checkpoint, in turns.

    python scripts/bench_peers.py MODEL [--official-python PYTHON] [--faster-python PYTHON] [--json out.json]

The two need different versions of transformers, so each has a Python of its own (docs/parity.md makes the official
one); without one, this Python is tried, and what is not installed is named and left out. --official-path and
--faster-path are folders for PYTHONPATH, for packages that were installed with `pip install --target`.

MODEL: a custom voice checkpoint; random weights serve (python -m qwen3tts.synthetic --eos-gain 0). Every runtime loads
once and speaks one text to warm up. Then each speaks it once per round, in an order that is turned round by round. A
frame's time is that of the whole loop with the prompt, codes alone, the device waited for, over the frames made.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("bench_peers_worker.py")
FRAME_SECONDS = 0.08


class Peer:
    """A runtime in a process of its own."""

    def __init__(self, name: str, python: str, path: Path | None, a: argparse.Namespace) -> None:
        self.name, self.runs, self.missing, self.facts = name, list[dict[str, Any]](), "", dict[str, Any]()
        command = [python, str(WORKER), name, "--model", a.model, "--device", a.device, "--dtype", a.dtype]
        command += ["--profile", a.profile, "--rows", str(a.rows), "--frames", str(a.frames)]
        environment = dict(os.environ)
        if path is not None:
            environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")])
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, **streams)  # type: ignore[call-overload]
        self._ready()

    def _ready(self) -> None:
        answer = self._answer()
        self.missing = answer.pop("missing", "")
        self.facts = answer

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            return {"missing": f"its process ended with code {self.process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, seed: int, keep: bool) -> None:
        """Speaks once; what fails is left out from then on."""
        if self.missing:
            return
        print(json.dumps({"run": seed}), file=self.process.stdin, flush=True)
        answer = self._answer()
        self.missing = answer.get("missing", "")
        if keep and not self.missing:
            self.runs.append(answer)

    def close(self) -> None:
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait()

    def result(self) -> dict[str, Any]:
        """Figures, or why there are none."""
        if self.missing or not self.runs:
            return {"missing": self.missing}
        each = [1e3 * run["seconds"] / run["frames"] for run in self.runs]
        whole = [run["with_audio"] / (FRAME_SECONDS * run["frames"]) for run in self.runs]
        return {
            **self.facts,
            "frames": self.runs[-1]["frames"],
            "ms_per_frame": round(statistics.median(each), 3),
            "ms_per_frame_runs": [round(value, 3) for value in each],
            "rtf_with_audio": round(statistics.median(whole), 4),
            "torch_peak_megabytes": round(self.runs[-1]["memory"] / 1e6, 1),
        }


def card() -> str:
    """The GPU as its driver names it."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--profile", default="low-latency", help="of this project")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", help="names of runtimes, separated by commas")
    for name in ("official", "faster"):
        parser.add_argument(f"--{name}-python", default=sys.executable)
        parser.add_argument(f"--{name}-path", type=Path)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    places = {
        "qwen3tts": (sys.executable, None),
        "qwen-tts": (a.official_python, a.official_path),
        "faster-qwen3-tts": (a.faster_python, a.faster_path),
    }
    if unknown := set(a.only.split(",") if a.only else []) - set(places):
        parser.error(f"unknown runtimes {', '.join(sorted(unknown))}; there are {', '.join(places)}")
    if a.runs < 1 or a.frames < 1 or a.rows < 1:
        parser.error("--runs, --frames and --rows are 1 or more")
    if a.json and not a.json.parent.is_dir():
        parser.error(f"there is no folder {a.json.parent} for --json")
    chosen = places if a.only is None else {name: places[name] for name in a.only.split(",")}
    peers = []
    for name, (python, path) in chosen.items():
        peers.append(Peer(name, python, path, a))
        print(f"{name}: {peers[-1].missing or peers[-1].facts}", flush=True)
    for turn in range(a.runs + 1):
        shift = turn % len(peers)
        for peer in peers[shift:] + peers[:shift]:
            peer.run(turn, keep=turn > 0)
    for peer in peers:
        peer.close()
    machine = {"card": card(), "processor": platform.machine(), "python": platform.python_version()}
    asked = {key: str(value) for key, value in vars(a).items() if key not in ("json", "only") and "_" not in key}
    result = {"what": __doc__, "machine": machine, "asked": asked, "peers": {p.name: p.result() for p in peers}}
    for name, found in result["peers"].items():
        print(f"{name:17} {found.get('ms_per_frame', 'missing: ' + found.get('missing', ''))}")
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n")
    raise SystemExit(0 if any(peer.runs for peer in peers) else 1)


if __name__ == "__main__":
    main()
