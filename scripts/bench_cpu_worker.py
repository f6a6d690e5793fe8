"""One side of bench_cpu.py: loads a checkpoint with this project or with the official package and speaks on request.

Both packages are timed by the same code: forward hooks on modules that both have under the same names. Requests and
answers are JSON lines on stdin and stdout; whatever else a package prints goes to stderr.
"""

import argparse
import json
import os
import platform
import resource
import sys
import threading
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def anonymous_bytes():
    """Memory of this process that no file backs: what it really takes away from others."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon: this benchmark needs Linux")


class PeakMemory(threading.Thread):
    """Largest anonymous memory seen, sampled every 20 ms (the kernel keeps a peak of the total only)."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak = 0
        self.start()

    def run(self):
        while True:
            self.peak = max(self.peak, anonymous_bytes())
            time.sleep(0.02)


class StageClock:
    """Times of one generate call, from hooks on the talker and the code predictor.

    A stage's time is that of its blocks (first block in, final norm out) and its head. The prompt ends when the first
    logits of codebook 0 are there, the frame loop when the last ones are; what follows is the codec."""

    def __init__(self, talker):
        self.reset()
        predictor = talker.code_predictor
        for stage, model in (("talker", talker.model), ("predictor", predictor.model)):
            model.layers[0].register_forward_pre_hook(lambda *_, stage=stage: self._enter(stage))
            model.norm.register_forward_hook(lambda *_, stage=stage: self._leave(stage))
        for stage, heads in (("talker", [talker.codec_head]), ("predictor", predictor.lm_head)):
            for head in heads:
                head.register_forward_pre_hook(lambda *_, stage=stage: self._enter(stage))
                head.register_forward_hook(lambda *_, stage=stage: self._leave(stage))
        talker.codec_head.register_forward_hook(lambda *_: self.token_times.append(time.perf_counter()))

    def reset(self):
        self.spent = {"talker": 0.0, "predictor": 0.0}
        self.entered, self.token_times = {}, []

    def _enter(self, stage):
        self.entered[stage] = time.perf_counter()

    def _leave(self, stage):
        if self.token_times:  # until the first token everything belongs to the prompt
            self.spent[stage] += time.perf_counter() - self.entered[stage]

    def stages(self, start, end, frames):
        """Milliseconds: of the whole prompt, and per frame of everything else."""
        first, last = self.token_times[0], self.token_times[-1]
        loop = last - first
        per_frame = {"talker_step": self.spent["talker"], "predictor_15_passes": self.spent["predictor"],
                     "host_overhead": loop - self.spent["talker"] - self.spent["predictor"], "frame_loop": loop,
                     "codec_decode": end - last}
        return {"prompt_and_prefill_ms": 1e3 * (first - start),
                **{f"{name}_ms_per_frame": 1e3 * value / frames for name, value in per_frame.items()},
                "total_ms": 1e3 * (end - start)}


def frame_bytes(talker):
    """Weight bytes that one frame reads: talker blocks and head once, predictor blocks 15 times, each lm_head once."""
    def size(*modules):
        return sum(p.numel() * p.element_size() for module in modules for p in module.parameters())

    predictor = talker.code_predictor
    return (size(talker.model.layers, talker.model.norm, talker.codec_head)
            + len(predictor.lm_head) * size(predictor.model.layers, predictor.model.norm) + size(predictor.lm_head))


class Project:
    """This project, through its native interface."""

    def __init__(self, checkpoint, threads):
        sys.path.insert(0, str(ROOT))
        start = time.perf_counter()
        import torch

        import qwen3tts

        torch.set_num_threads(threads)
        self.module, self.import_bytes = qwen3tts, anonymous_bytes()
        self.import_seconds, start = time.perf_counter() - start, time.perf_counter()
        self.tts = qwen3tts.load(checkpoint, backend="torch", device="cpu", dtype="float32")
        self.load_seconds = time.perf_counter() - start
        self.talker = self.tts.engine.runtime.talker
        self.versions = {"qwen3tts": qwen3tts.__version__, "torch": torch.__version__}

    def speak(self, text, frames):
        options = self.module.GenerateOptions(do_sample=False, subtalker_dosample=False, max_frames=frames)
        return self.tts.generate(text, voice="ryan", language="english", options=options).samples


class Official:
    """The official package, through its public class."""

    def __init__(self, checkpoint, threads):
        sys.path.insert(0, str(ROOT / "scripts" / "parity" / "stubs"))
        start = time.perf_counter()
        import torch
        import transformers
        from qwen_tts import Qwen3TTSModel

        transformers.logging.set_verbosity_error()
        torch.set_num_threads(threads)
        self.import_bytes = anonymous_bytes()
        self.import_seconds, start = time.perf_counter() - start, time.perf_counter()
        self.tts = Qwen3TTSModel.from_pretrained(checkpoint, dtype=torch.float32)
        self.load_seconds = time.perf_counter() - start
        self.talker = self.tts.model.talker
        self.versions = {name: metadata.version(name) for name in ("qwen-tts", "torch", "transformers")}

    def speak(self, text, frames):
        wavs, _ = self.tts.generate_custom_voice(text, speaker="ryan", language="english", max_new_tokens=frames + 1,
                                                 do_sample=False, subtalker_dosample=False)
        return wavs[0]


def serve(side, memory, answers):
    """Answers {"text", "frames", "wav"} with the stages of one generate call; wav: where to leave the samples."""
    import numpy as np

    clock = StageClock(side.talker)
    for line in sys.stdin:
        request = json.loads(line)
        clock.reset()
        start = time.perf_counter()
        samples = side.speak(request["text"], request["frames"])
        end = time.perf_counter()
        frames = len(clock.token_times) - 1
        np.save(request["wav"], np.asarray(samples))
        answer = {"frames": frames, **clock.stages(start, end, frames),
                  "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                  "peak_anonymous_bytes": memory.peak}
        print(json.dumps(answer), file=answers, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", choices=("project", "official"), required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--threads", type=int, required=True)
    a = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    memory = PeakMemory()
    side = {"project": Project, "official": Official}[a.package](a.checkpoint, a.threads)
    ready = {"import_seconds": side.import_seconds, "load_seconds": side.load_seconds,
             "import_anonymous_bytes": side.import_bytes,
             "load_peak_anonymous_bytes": memory.peak,
             "weight_bytes_per_frame": frame_bytes(side.talker),
             "versions": {"python": platform.python_version(), **side.versions}}
    print(json.dumps(ready), file=answers, flush=True)
    serve(side, memory, answers)


if __name__ == "__main__":
    main()
