#!/usr/bin/env python3
"""Times loading a model, from the page cache to ready, and what it holds on the device, each run in its own process.

    python scripts/bench_load.py MODEL [--backend cuda] [--profile low-latency] [--streams 1] [--runs 3]
                                 [--memory [--frames 1000]] [--json FILE]

The clock starts after torch was imported and the device's context exists; both are told apart. The first run also fills
the page cache and makes the checks that are kept for later loads. Memory is what the device has less than before the
load, in all and without the codec; torch's own is told apart from what graphs, libraries and kernels take.

--memory: memory after every step of the load, after one text of so many frames without audio, and after its audio. The
language model alone is what there is before the audio, without the codec's tensors and its BLAS. Asking for the memory
takes some milliseconds of the load.
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
CODEC_LIBRARY = ("tried the codec's BLAS", "opened the codec's BLAS")
"""messages of qwen3tts.backends.native.codec_kernels after the steps that take memory for the codec beside tensors"""


class Steps(logging.Handler):
    """The package's messages, each with the seconds since the load began and, with a device, its memory then."""

    def __init__(self, device: Any = None) -> None:
        super().__init__()
        self.device, self.steps = device, list[dict[str, Any]]()
        self._before = self._memory()
        self.began = time.perf_counter()

    def _memory(self) -> Any:
        if self.device is None:
            return None
        from qwen3tts.backends.memory import device_memory

        return device_memory(self.device)

    def note(self, what: str) -> None:
        """A step has ended."""
        step: dict[str, Any] = {"seconds": round(time.perf_counter() - self.began, 3), "what": what}
        if self.device is not None:
            before, now = self._before, self._memory()
            self._before = now
            step |= {
                "used": now.used - before.used, "reserved": now.reserved - before.reserved,
                "torch_reserved": now.reserved, "torch_allocated": now.allocated,
            }  # fmt: skip
        self.steps.append(step)

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        self.note(record.getMessage())


def shown(steps: list[dict[str, Any]]) -> str:
    """A line for each step."""
    lines = []
    for step in steps:
        memory = ""
        if "used" in step:
            numbers = (step["used"], step["used"] - step["reserved"], step["torch_reserved"], step["torch_allocated"])
            memory = " ".join(f"{number / 1e6:10.1f}" for number in numbers) + "  "
        lines.append(f"{step['seconds']:7.3f} s {memory} {step['what']}")
    if any("used" in step for step in steps):
        lines.insert(0, f"{'':9} {'taken, MB':>10} {'not torch':>10} {'torch has':>10} {'tensors':>10}")
    return "\n".join(lines)


def codec_bytes(codec: Any) -> int:
    """Of the codec's tensors on the device: parameters, and what is derived from them."""
    import torch

    tensors = [*codec.parameters(), *codec.buffers()]
    tensors += [value for part in codec.modules() for value in vars(part).values() if isinstance(value, torch.Tensor)]
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values() if tensor.is_cuda)


def speak(tts: Any, frames: int, steps: Steps) -> None:
    """One text, without its audio and with it."""
    from qwen3tts.benchmark.speed import TEXT, bench_spec

    for audio in (False, True):
        (speech,) = tts.engine.speak([bench_spec(tts, TEXT, frames if not audio else 50)], decode=audio)
        steps.note(f"spoke {speech.frames} frames {'with' if audio else 'without'} audio")


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
    ready = time.perf_counter()
    free = torch.cuda.mem_get_info()[0] if on_gpu else 0
    with_memory = on_gpu and a.memory
    steps, logger = Steps(torch.device("cuda") if with_memory else None), logging.getLogger("qwen3tts")
    logger.addHandler(steps)
    logger.setLevel(logging.DEBUG if with_memory else logging.INFO)
    options = qwen3tts.RuntimeOptions() if a.streams is None else qwen3tts.RuntimeOptions(max_streams=a.streams)
    tts = load(a.model, backend=a.backend, profile=a.profile, runtime=options)
    if on_gpu:
        torch.cuda.synchronize()
    found: dict[str, Any] = {
        "load_seconds": round(time.perf_counter() - steps.began, 3),
        "import_seconds": round(imported - STARTED, 3),
        "context_seconds": round(ready - imported, 3),
        "steps": steps.steps,
    }
    if on_gpu:
        used = free - torch.cuda.mem_get_info()[0]
        codec = codec_bytes(tts.engine.runtime.codec.model)
        found["megabytes"] = {
            "all": round(used / 1e6, 1), "without the codec's tensors": round((used - codec) / 1e6, 1),
            "of torch": round(torch.cuda.memory_reserved() / 1e6, 1), "codec's tensors": round(codec / 1e6, 1),
        }  # fmt: skip
    if with_memory:
        speak(tts, a.frames, steps)
        before_audio = sum(step["used"] for step in steps.steps[:-1])
        library = sum(step["used"] - step["reserved"] for step in steps.steps if step["what"] in CODEC_LIBRARY)
        found["megabytes"] |= {
            "codec's BLAS": round(library / 1e6, 1), "after speaking": round(before_audio / 1e6, 1),
            "language model alone": round((before_audio - codec - library) / 1e6, 1),
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
    parser.add_argument("--memory", action="store_true", help="after every step, and after a text")
    parser.add_argument("--frames", type=int, default=1000, help="of that text")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.one:
        print(json.dumps(one_load(a)))
        return
    if a.runs < 1:
        parser.error("--runs is 1 or more")
    if a.json and not a.json.parent.is_dir():
        parser.error(f"there is no folder {a.json.parent} for --json")
    runs = []
    for run in range(a.runs):
        command = [sys.executable, __file__, a.model, "--one", "--backend", a.backend, "--profile", a.profile]
        command += [] if a.streams is None else ["--streams", str(a.streams)]
        command += ["--memory", "--frames", str(a.frames)] if a.memory else []
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:  # it has said why
            raise SystemExit(done.returncode)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
        print(f"run {run}: {runs[-1]['load_seconds']} s {runs[-1].get('megabytes', '')}", flush=True)
    print(shown(runs[-1]["steps"]))
    later = [run["load_seconds"] for run in runs[1:]] or [runs[0]["load_seconds"]]
    result = {"model": a.model, "backend": a.backend, "profile": a.profile, "streams": a.streams}
    result |= {"first_seconds": runs[0]["load_seconds"], "later_seconds": statistics.median(later), "runs": runs}
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
