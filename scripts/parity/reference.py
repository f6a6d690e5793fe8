#!/usr/bin/env python3
"""Runs the official qwen-tts package on a checkpoint and saves what it computes: one .npz and one .json per case.

    REFERENCE_PYTHON scripts/parity/reference.py --checkpoint DIR --cases cases/tiny-base.json --out DIR

REFERENCE_PYTHON is a Python that has the official package (docs/parity.md says how to make one); this project need not
be installed there. The package is driven through its public API on the CPU with one thread, in float32 with eager
attention or in bfloat16 with PyTorch's (sdpa); what lies in between is captured with hooks. docs/parity.md lists the
arrays.
"""

import argparse
import contextlib
import json
import platform
import sys
import time
import warnings
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "stubs"), str(HERE)]  # the package imports modules that only its 25 Hz tokenizer calls
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import torch  # noqa: E402

with contextlib.redirect_stdout(sys.stderr):  # the package prints notices when imported
    import transformers
    from qwen_tts import Qwen3TTSModel

from capture import Capture  # noqa: E402
from public_api import probe, sampling_of, speak  # noqa: E402
from signals import SAMPLE_RATE, random_codes, signal  # noqa: E402

ATTENTION = {"float32": "eager", "bfloat16": "sdpa"}
PACKAGES = ("qwen-tts", "torch", "transformers", "tokenizers", "numpy", "librosa", "soxr", "soundfile")


class Reference:
    """The official package on one checkpoint. `run(case)` returns (arrays, info)."""

    def __init__(self, checkpoint, dtype="float32"):
        with contextlib.redirect_stdout(sys.stderr):
            self.tts = Qwen3TTSModel.from_pretrained(str(checkpoint), dtype=getattr(torch, dtype),
                                                     attn_implementation=ATTENTION[dtype])
        self.codec = self.tts.model.speech_tokenizer

    def run(self, case):
        kind = case["kind"]
        return self.generate(case) if "rows" in case else getattr(self, kind)(case)

    # ------------------------------------------------------------ generation

    def generate(self, case):
        extra, items = self.voice_prompts(case) if case["kind"] == "voice_clone" else ({}, None)
        with Capture(self.tts.model) as got:
            wavs, _ = speak(self.tts, case, items)
        arrays, info = got.arrays(wavs, sampling_of(case)["do_sample"])
        return extra | arrays, info

    def voice_prompts(self, case):
        """Made one by one: encoding a padded batch changes the last frame of the shorter references."""
        extra, items = {}, []
        for i, row in enumerate(case["rows"]):
            with self.margins() as margins:
                item = self.prompt_item(signal(**row["reference"]["signal"]), row["reference"])
            extra[f"speaker_embedding.{i}"] = item.ref_spk_embedding.float().numpy()
            if item.ref_code is not None:
                extra[f"ref_codes.{i}"] = item.ref_code.numpy()
                extra[f"ref_margin.{i}"] = margin_of(margins, item.ref_code)
            items.append(item)
        return extra, items

    def prompt_item(self, wav, reference):
        return self.tts.create_voice_clone_prompt((wav, SAMPLE_RATE), ref_text=reference.get("text", ""),
                                                  x_vector_only_mode=reference["mode"] == "x_vector")[0]

    # ------------------------------------------------------------ codec and speaker encoder

    def codec_decode(self, case):
        size = self.codec.model.config.decoder_config.codebook_size
        codes = random_codes(case["frames"], size, case.get("seed", 0))
        wavs, _ = self.codec.decode([{"audio_codes": torch.as_tensor(codes)}])
        return {"codes": codes, "wav": wavs[0]}, {}

    @contextlib.contextmanager
    def margins(self):
        """Notes for every codebook how much farther the second-nearest entry was, measured on its own input."""
        margins = []

        def measure(quantize, book):
            def wrapped(hidden):
                near = torch.cdist(hidden[None].float(), book.embed[None].float())[0].topk(2, largest=False)[0]
                margins.append(near[:, 1] - near[:, 0])
                return quantize(hidden)
            return wrapped

        quantizer = self.codec.model.encoder.quantizer
        books = [layer.codebook for part in (quantizer.semantic_residual_vector_quantizer,
                                             quantizer.acoustic_residual_vector_quantizer) for layer in part.layers]
        for book in books:
            book.quantize = measure(book.quantize, book)
        try:
            yield margins
        finally:
            for book in books:
                del book.quantize

    def codec_encode(self, case):
        with self.margins() as margins:
            codes = self.codec.encode(signal(**case["signal"]), sr=SAMPLE_RATE).audio_codes[0].numpy()
        return {"codes": codes, "margin": margin_of(margins, codes)}, {}

    def speaker_embedding(self, case):
        mel = []
        hook = self.tts.model.speaker_encoder.register_forward_pre_hook(lambda module, args: mel.append(args[0]))
        try:
            item = self.prompt_item(signal(**case["signal"]), {"mode": "x_vector"})
        finally:
            hook.remove()
        return {"mel": mel[0][0].float().numpy(), "embedding": item.ref_spk_embedding.float().numpy()}, {}

    # ------------------------------------------------------------ public methods

    def probe(self, case):
        """Not a computation: what the public methods answer and refuse."""
        return {}, probe(self.tts, case["model_type"])


def margin_of(margins, codes):
    """[frames, 16] of what Reference.margins() noted for these codes."""
    return torch.stack(margins[:codes.shape[1]], 1)[:len(codes)].float().numpy()


def versions():
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}}


def run_file(checkpoint, cases_file, out, only="", dtype="float32"):
    """Runs the cases of one file whose name contains `only`; writes out/NAME.npz and out/NAME.json."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    spec = json.loads(Path(cases_file).read_text(encoding="utf-8"))
    cases = [case for case in spec["cases"] if only in case["name"]]
    if not cases:
        return
    reference = Reference(checkpoint, dtype)
    for case in cases:
        start = time.perf_counter()
        arrays, info = reference.run(case)
        seconds = time.perf_counter() - start
        path = out / f"{case['name']}.npz"
        np.savez(path, **arrays)
        record = {"checkpoint": spec["checkpoint"], "case": case, "result": info, "seconds": round(seconds, 2),
                  "run": {"dtype": dtype, "device": "cpu", "attention": ATTENTION[dtype],
                          "threads": torch.get_num_threads()},
                  "versions": versions()}
        path.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"{case['name']:28s} {seconds:6.2f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True, help="checkpoint folder")
    parser.add_argument("--cases", required=True, help="case file, see cases/")
    parser.add_argument("--out", required=True, help="folder for NAME.npz and NAME.json")
    parser.add_argument("--only", default="", help="run only the cases whose name contains this")
    parser.add_argument("--dtype", choices=ATTENTION, default="float32", help="of the model (default: %(default)s)")
    a = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    run_file(a.checkpoint, a.cases, a.out, a.only, a.dtype)


if __name__ == "__main__":
    main()
