#!/usr/bin/env python3
"""Times this project beside the official package and faster-qwen3-tts on the same checkpoint, in turns.

    python scripts/bench_peers.py MODEL [--official-python PYTHON] [--faster-python PYTHON] [--json out.json]

The two need different versions of transformers (qwen-tts 0.1.1: 4.57.3; faster-qwen3-tts 0.5.4: 5.15.1, while 5.17
does not do), so each has a Python of its own (docs/parity.md makes the official one); without one, this Python is
tried, and what is not installed is named and left out. --official-path and --faster-path are folders for PYTHONPATH,
for packages that were installed with `pip install --target`.

MODEL: a custom voice checkpoint; random weights serve (python -m qwen3tts.synthetic --eos-gain 0: no speech ends by
itself). Every runtime loads once, this project's by itself and the others side by side, and speaks one text to warm up.
Then each speaks it once per round, in an order that is turned round by round. A frame's time is that of the whole loop
with the prompt, codes alone, the device waited for, over the frames made. --official-frames: fewer frames for the slow
one, whose time per frame hardly depends on how many there are.
"""

import argparse
import contextlib
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
OURS = "qwen3tts"
NAMES = (OURS, "qwen-tts", "faster-qwen3-tts")


class Peer:
    """A runtime in a process of its own, which loads from the beginning."""

    def __init__(self, name: str, python: str, path: Path | None, frames: int, a: argparse.Namespace) -> None:
        self.name, self.frames, self.runs = name, frames, list[dict[str, Any]]()
        self.missing, self.facts = "", dict[str, Any]()
        command = [python, str(WORKER), name, "--model", a.model, "--device", a.device, "--dtype", a.dtype]
        command += ["--profile", a.profile, "--rows", str(a.rows), "--frames", str(frames)]
        environment = dict(os.environ)
        if path is not None:
            environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")])
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, **streams)  # type: ignore[call-overload]

    def wait(self) -> None:
        """Until it has loaded, or cannot."""
        self.facts = self._answer()
        self.missing = self.facts.pop("missing", "")
        print(f"{self.name}: {self.missing or self.facts}", flush=True)

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
        try:
            print(json.dumps({"run": seed}), file=self.process.stdin, flush=True)
            answer = self._answer()
        except BrokenPipeError:
            answer = {"missing": f"its process ended with code {self.process.wait()}"}
        self.missing = answer.get("missing", "")
        if keep and not self.missing:
            self.runs.append(answer)

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(BrokenPipeError):
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
            "frames_asked": self.frames,
            "frames": [run["frames"] for run in self.runs],
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


def load(places: dict[str, tuple[str, Path | None, int]], a: argparse.Namespace) -> list[Peer]:
    """This project first, with the machine to itself; the others at the same time."""
    peers: list[Peer] = []
    for group in ([name for name in places if name == OURS], [name for name in places if name != OURS]):
        started = [Peer(name, *places[name], a) for name in group]
        for peer in started:
            peer.wait()
        peers += started
    return peers


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--profile", default="low-latency", help="of this project")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--official-frames", type=int, help="as --frames, if left out")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", help="names of runtimes, separated by commas")
    for name in ("official", "faster"):
        parser.add_argument(f"--{name}-python", default=sys.executable)
        parser.add_argument(f"--{name}-path", type=Path)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    if a.official_frames is None:
        a.official_frames = a.frames
    if unknown := set(a.only.split(",") if a.only else []) - set(NAMES):
        parser.error(f"unknown runtimes {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if min(a.runs, a.frames, a.official_frames, a.rows) < 1:
        parser.error("--runs, --frames, --official-frames and --rows are 1 or more")
    if a.json and not a.json.parent.is_dir():
        parser.error(f"there is no folder {a.json.parent} for --json")
    return a


def report(peers: list[Peer], a: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What is known by now, written after every round: a slow runtime may be stopped."""
    found = {peer.name: peer.result() for peer in peers}
    if a.json:
        machine = {"card": card(), "processor": platform.machine(), "python": platform.python_version()}
        asked = {key: str(value) for key, value in vars(a).items() if key not in ("json", "only") and "_" not in key}
        result = {"what": __doc__, "machine": machine, "asked": asked, "peers": found}
        a.json.write_text(json.dumps(result, indent=1) + "\n")
    return found


def main() -> None:
    a = parsed()
    places = {
        OURS: (sys.executable, None, a.frames),
        "qwen-tts": (a.official_python, a.official_path, a.official_frames),
        "faster-qwen3-tts": (a.faster_python, a.faster_path, a.frames),
    }
    peers = load(places if a.only is None else {name: places[name] for name in a.only.split(",")}, a)
    found: dict[str, Any] = {}
    for turn in range(a.runs + 1):
        shift = turn % len(peers)
        for peer in peers[shift:] + peers[:shift]:
            peer.run(turn, keep=turn > 0)
        found = report(peers, a)
    for peer in peers:
        peer.close()
    for name, result in found.items():
        print(f"{name:17} {result.get('ms_per_frame', 'missing: ' + result.get('missing', ''))}")
    raise SystemExit(0 if any(peer.runs for peer in peers) else 1)


if __name__ == "__main__":
    main()
