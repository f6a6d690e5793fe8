#!/usr/bin/env python3
"""Times this project against the official package on the CPU, stage by stage, interleaved in one run.

    python scripts/bench_cpu.py --reference-python REFERENCE_PYTHON --work DIR --json out.json

A synthetic custom voice checkpoint (random weights, no end of speech: lengths are fixed) is made in DIR/checkpoint,
2.5 GB at 0.6B. Each package loads it in float32 in a process of its own and stays loaded; the two take turns, the
first place changing with every repeat, and only one computes at a time. Medians are reported. The machine should be
idle otherwise. docs/parity.md says how to make REFERENCE_PYTHON and where the vocabulary (--tiktoken) comes from.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

TEXT = "The quick brown fox jumps over the lazy dog, and then it takes a long rest in the warm afternoon sun."
STAGES = ("prompt_and_prefill_ms", "talker_step_ms_per_frame", "predictor_15_passes_ms_per_frame",
          "host_overhead_ms_per_frame", "frame_loop_ms_per_frame", "codec_decode_ms_per_frame", "total_ms")
PACKAGES = ("project", "official")


class Worker:
    """A package in its own process; see bench_cpu_worker.py."""

    def __init__(self, package, python, checkpoint, threads, log):
        command = [python, str(ROOT / "scripts" / "bench_cpu_worker.py"), "--package", package,
                   "--checkpoint", str(checkpoint), "--threads", str(threads)]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        self.package, self.log = package, log
        self.process = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=log.open("w"))
        self.ready = self._answer()

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            tail = "\n".join(self.log.read_text(encoding="utf-8").splitlines()[-15:])
            raise SystemExit(f"the {self.package} worker ended (exit code {self.process.wait()}):\n{tail}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def measure(workers, work, text, frames, repeats, warmups):
    """{package: [answer of each repeat]} and the largest difference between the two packages' samples."""
    runs, difference = {package: [] for package in workers}, 0.0
    for repeat in range(-warmups, repeats):
        order = list(workers) if repeat % 2 == 0 else list(workers)[::-1]
        samples = {}
        for package in order:
            path = work / f"{package}.npy"
            answer = workers[package].ask(text=text, frames=frames, wav=str(path))
            samples[package] = np.load(path)
            if answer["frames"] != frames:
                raise SystemExit(f"{package} made {answer['frames']} frames in place of {frames}")
            if repeat >= 0:
                runs[package].append(answer)
            print(f"{'warm-up' if repeat < 0 else f'repeat {repeat + 1}/{repeats}'} {package}: "
                  f"{answer['frame_loop_ms_per_frame']:.1f} ms/frame", file=sys.stderr, flush=True)
        ours, theirs = samples.values()
        difference = max(difference, float(np.abs(ours - theirs).max()))
    return runs, difference


def summary(worker, runs, frames):
    """Medians of one package."""
    medians = {stage: round(statistics.median(run[stage] for run in runs), 3) for stage in STAGES}
    size = worker.ready["weight_bytes_per_frame"]
    return {**medians, "rtf": round(medians["total_ms"] / (80 * frames), 3),
            "weight_gb_per_frame": round(size / 1e9, 4),
            "frame_loop_gb_per_s": round(size / medians["frame_loop_ms_per_frame"] / 1e6, 2),
            "import_seconds": round(worker.ready["import_seconds"], 2),
            "load_seconds": round(worker.ready["load_seconds"], 2),
            "peak_rss_gb": round(runs[-1]["peak_rss_bytes"] / 1e9, 3),
            "peak_anonymous_gb": round(runs[-1]["peak_anonymous_bytes"] / 1e9, 3),
            "load_peak_anonymous_gb": round(worker.ready["load_peak_anonymous_bytes"] / 1e9, 3),
            "import_anonymous_gb": round(worker.ready["import_anonymous_bytes"] / 1e9, 3),
            "versions": worker.ready["versions"],
            "repeats": [{stage: round(run[stage], 3) for stage in STAGES} for run in runs]}


def machine():
    """What the figures depend on besides the code."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    models = [line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": models[0] if models else platform.machine(), "cores": len(os.sched_getaffinity(0)),
            "memory_gb": round(memory / 1e9, 1), "system": platform.platform()}


def commit():
    """Of this project, with "+changes" if the working tree has any."""
    def git(*command):
        return subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True, check=True).stdout

    return git("rev-parse", "--short=12", "HEAD").strip() + ("+changes" if git("status", "--porcelain") else "")


def make_checkpoint(folder, preset, tiktoken):
    from qwen3tts import synthetic

    if not (folder / "speech_tokenizer" / "model.safetensors").exists():
        print(f"making {preset} in {folder}", file=sys.stderr, flush=True)
        synthetic.make_checkpoint(folder, preset=preset, model_type="custom_voice", seed=0, eos_gain=0.0,
                                  tiktoken=tiktoken)


def paired_ratios(ours, theirs):
    """Medians over the repeats of ours / theirs: neighbours in time, so that a slow spell of the machine cancels."""
    return {stage: round(statistics.median(a[stage] / b[stage] for a, b in zip(ours, theirs, strict=True)), 3)
            for stage in STAGES}


def read_through(folder):
    """Brings the files into the page cache, so that the second package to load has no advantage."""
    for path in folder.rglob("*.safetensors"):
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def print_table(result):
    ours, theirs = (result["packages"][package] for package in PACKAGES)
    ratios = result["ratios"]
    print(f"{'':34s} {'project':>10s} {'official':>10s} {'ratio':>7s}")
    for name in (*STAGES, "rtf", "frame_loop_gb_per_s", "import_seconds", "load_seconds", "load_peak_anonymous_gb",
                 "peak_rss_gb", "peak_anonymous_gb"):
        print(f"{name:34s} {ours[name]:10.3f} {theirs[name]:10.3f} {ratios.get(name, ours[name] / theirs[name]):7.3f}")
    print(f"largest difference between the waveforms: {result['max_waveform_difference']:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference-python", required=True, help="Python that has the official package")
    parser.add_argument("--work", type=Path, required=True, help="scratch folder for the checkpoint")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--preset", default="0.6b", help="size of the checkpoint (default: %(default)s)")
    parser.add_argument("--tiktoken", default=os.environ.get("QWEN3TTS_DASHSCOPE_WHEEL"),
                        help="dashscope wheel with the real vocabulary (default: $QWEN3TTS_DASHSCOPE_WHEEL)")
    parser.add_argument("--text", default=TEXT, help="what is spoken (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=25, help="frames per call (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls per package (default: %(default)s)")
    parser.add_argument("--warmups", type=int, default=1, help="untimed calls per package (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of torch, in both (default: %(default)s)")
    a = parser.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    checkpoint = a.work / f"checkpoint-{a.preset}"
    make_checkpoint(checkpoint, a.preset, a.tiktoken)
    read_through(checkpoint)
    pythons = {"project": sys.executable, "official": a.reference_python}
    workers = {}
    try:
        for package in PACKAGES:  # one after the other: loading is timed too
            workers[package] = Worker(package, pythons[package], checkpoint, a.threads, a.work / f"{package}.log")
        runs, difference = measure(workers, a.work, a.text, a.frames, a.repeats, a.warmups)
    finally:
        for worker in workers.values():
            worker.close()
    result = {"what": "generate calls, greedy, one text; packages interleaved; medians, ratios: medians of pairs",
              "machine": machine(), "commit": commit(), "preset": a.preset, "dtype": "float32", "device": "cpu",
              "threads": a.threads, "batch": 1, "frames": a.frames, "repeats": a.repeats, "warmups": a.warmups,
              "text": a.text, "max_waveform_difference": difference,
              "ratios": paired_ratios(*runs.values()),
              "packages": {package: summary(workers[package], runs[package], a.frames) for package in PACKAGES}}
    print_table(result)
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
