#!/usr/bin/env python3
"""Times loading a model, from the page cache to ready, and what it holds on the device, each run in its own process.

    python scripts/bench_load.py MODEL [--backend cuda] [--profile low-latency] [--streams 1] [--runs 3] [--json FILE]

The clock starts after torch was imported and the device's context exists; both are told apart. The first run also fills
the page cache and makes the checks that are kept for later loads. Memory is what the device has less than before the
load, in all and without the codec's weights; torch's own is told apart from what graphs, libraries and kernels take.
"""

import argparse
import json
import logging
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()


class Steps(logging.Handler):
    """The package's messages, each with the seconds since the load began."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.lines = time.perf_counter(), list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        self.lines.append(f"{time.perf_counter() - self.began:7.3f} s  {record.getMessage()}")


def one_load(a: argparse.Namespace) -> dict[str, Any]:
    """Loads once, in this process."""
    import torch

    import qwen3tts

    load = qwen3tts.load  # imports what it needs
    imported = time.perf_counter()
    on_gpu = a.backend != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0] if on_gpu else 0
    steps, logger = Steps(), logging.getLogger("qwen3tts")
    logger.addHandler(steps)
    logger.setLevel(logging.INFO)
    options = qwen3tts.RuntimeOptions() if a.streams is None else qwen3tts.RuntimeOptions(max_streams=a.streams)
    tts = load(a.model, backend=a.backend, profile=a.profile, runtime=options)
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - steps.began
    found = {
        "load_seconds": round(seconds, 3),
        "import_seconds": round(imported - STARTED, 3),
        "context_seconds": round(steps.began - imported, 3),
        "steps": steps.lines,
    }
    if on_gpu:
        used = free - torch.cuda.mem_get_info()[0]
        tensors = [*tts.engine.runtime.codec.model.parameters(), *tts.engine.runtime.codec.model.buffers()]
        codec = sum(tensor.nbytes for tensor in tensors if tensor.is_cuda)
        found["megabytes"] = {
            "all": round(used / 1e6, 1), "without the codec": round((used - codec) / 1e6, 1),
            "of torch": round(torch.cuda.memory_reserved() / 1e6, 1), "codec": round(codec / 1e6, 1),
        }  # fmt: skip
    tts.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "hip", "torch", "cpu"))
    parser.add_argument("--profile", default="low-latency")
    parser.add_argument("--streams", type=int, help="max_streams")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.one:
        print(json.dumps(one_load(a)))
        return
    if a.runs < 1:
        parser.error("--runs is 1 or more")
    runs = []
    for run in range(a.runs):
        command = [sys.executable, __file__, a.model, "--one", "--backend", a.backend, "--profile", a.profile]
        command += [] if a.streams is None else ["--streams", str(a.streams)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:  # it has said why
            raise SystemExit(done.returncode)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
        print(f"run {run}: {runs[-1]['load_seconds']} s {runs[-1].get('megabytes', '')}", flush=True)
    print("\n".join(runs[-1]["steps"]))
    later = [run["load_seconds"] for run in runs[1:]] or [runs[0]["load_seconds"]]
    result = {"model": a.model, "backend": a.backend, "profile": a.profile, "streams": a.streams}
    result |= {"first_seconds": runs[0]["load_seconds"], "later_seconds": statistics.median(later), "runs": runs}
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
