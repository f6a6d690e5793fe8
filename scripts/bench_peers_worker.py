#!/usr/bin/env python3
"""One runtime under scripts/bench_peers.py: loads a model once, then speaks each time a line arrives on stdin.

Runs in the Python of that runtime, so it imports nothing of this project but in the role "qwen3tts". What a runtime
prints goes to stderr; stdout has one line of JSON per answer.
"""

import argparse
import contextlib
import json
import sys
import time
import traceback
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
STUBS = (HERE / "bench_stubs", HERE / "parity" / "stubs")
TEXT = (
    "The morning train was late again, so she sat down by the window, opened her notebook, and wrote about the harbour,"
    " the grey ships, the smell of rope and salt, and the old man who had once repaired every clock in the town."
)


class Timed:
    """Wraps the function that makes the codes: seconds of its last call, and what it returned."""

    def __init__(self, function, wait):
        self.function, self.wait, self.seconds, self.result = function, wait, 0.0, None

    def __call__(self, *arguments, **options):
        self.wait()
        started = time.perf_counter()
        self.result = self.function(*arguments, **options)
        self.wait()
        self.seconds = time.perf_counter() - started
        return self.result


class Ours:
    """This project."""

    packages = ("qwen3tts",)

    def __init__(self, a, wait):
        import qwen3tts

        self.qwen3tts = qwen3tts
        on_gpu = a.device.startswith("cuda")
        streams = qwen3tts.RuntimeOptions(max_streams=a.rows)
        self.tts = qwen3tts.load(
            a.model, backend="auto" if on_gpu else "cpu", dtype=a.dtype, profile=a.profile, runtime=streams,
            device=a.device if on_gpu else None,
        )  # fmt: skip
        manifest = self.tts.optimization_manifest("inference")
        passes = [] if manifest is None else manifest.to_dict()["passes"]
        self.facts = {"passes": {entry["pass"]: entry["runtime_status"] for entry in passes}}

    def speak(self, rows, frames, seed):
        """(frames, seconds for them with the prompts)."""
        options = [self.qwen3tts.GenerateOptions(max_frames=frames, seed=seed + i) for i in range(rows)]
        voice = self.tts.voices[0]
        speeches = self.tts.generate([TEXT] * rows, voice, "english", options=options)
        return sum(speech.frames for speech in speeches), speeches[0].timings.generation_seconds


class Official:
    """qwen-tts."""

    packages = ("qwen-tts", "transformers")

    def __init__(self, a, wait):
        import torch
        from qwen_tts import Qwen3TTSModel

        self.torch = torch
        on_gpu = a.device.startswith("cuda")
        place = {"device_map": a.device, "attn_implementation": "sdpa"} if on_gpu else {"attn_implementation": "eager"}
        self.tts = Qwen3TTSModel.from_pretrained(a.model, dtype=getattr(torch, a.dtype), **place)
        self.tts.model.generate = self.codes = Timed(self.tts.model.generate, wait)
        self.facts = {}

    def speak(self, rows, frames, seed):
        """N tokens give N - 1 frames."""
        self.torch.manual_seed(seed)
        voice = self.tts.get_supported_speakers()[0]
        self.tts.generate_custom_voice(
            [TEXT] * rows, speaker=[voice] * rows, language=["English"] * rows, instruct=[""] * rows,
            max_new_tokens=frames + 1,
        )  # fmt: skip
        return sum(len(codes) for codes in self.codes.result[0]), self.codes.seconds


class Faster:
    """faster-qwen3-tts: one text at a time."""

    packages = ("faster-qwen3-tts", "qwen-tts-hf", "transformers")

    def __init__(self, a, wait):
        import faster_qwen3_tts.generate as module
        import torch
        from faster_qwen3_tts import FasterQwen3TTS

        if a.rows > 1:
            raise RuntimeError("it speaks one text at a time")
        self.torch = torch
        self.tts = FasterQwen3TTS.from_pretrained(a.model, device=a.device, dtype=getattr(torch, a.dtype))
        self.tts.warmup()
        module.fast_generate = self.codes = Timed(module.fast_generate, wait)
        self.facts = {}

    def speak(self, rows, frames, seed):
        """As its own loop counts."""
        self.torch.manual_seed(seed)
        voice = self.tts.model.get_supported_speakers()[0]
        self.tts.generate_custom_voice(TEXT, voice, "English", max_new_tokens=frames)
        return self.codes.result[1]["steps"], self.codes.seconds


ROLES = {"qwen3tts": Ours, "qwen-tts": Official, "faster-qwen3-tts": Faster}


def version(package):
    """Of an installed package, None if it has no metadata here."""
    if package == "qwen3tts":  # may run from its source folder
        import qwen3tts

        return qwen3tts.__version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def serve(a, answer):
    """Answers {"run": seed} until stdin ends."""
    import torch

    on_gpu = a.device.startswith("cuda")
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    role = ROLES[a.role]
    started = time.perf_counter()
    try:
        runtime = role(a, wait)
        versions = {package: version(package) for package in (*role.packages, "torch")}
        answer({"ready": versions, "load_seconds": round(time.perf_counter() - started, 2), **runtime.facts})
        for line in sys.stdin:
            began = time.perf_counter()
            frames, seconds = runtime.speak(a.rows, a.frames, json.loads(line)["run"])
            wait()
            memory = torch.cuda.max_memory_reserved() if on_gpu else 0
            answer({"frames": frames, "seconds": seconds, "with_audio": time.perf_counter() - began, "memory": memory})
    except Exception as error:  # whatever another project raises is why it is left out
        traceback.print_exc()
        answer({"missing": f"{type(error).__name__}: {error}"[:500]})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=ROLES)
    for name in ("--model", "--device", "--dtype", "--profile"):
        parser.add_argument(name, required=True)
    for name in ("--rows", "--frames"):
        parser.add_argument(name, type=int, required=True)
    a = parser.parse_args()
    if a.role != "qwen3tts":
        sys.path += map(str, STUBS)  # for modules that are imported and not called here; real ones come first
    out = sys.stdout

    def answer(what):
        print(json.dumps(what), file=out, flush=True)

    with contextlib.redirect_stdout(sys.stderr):
        serve(a, answer)


if __name__ == "__main__":
    main()
