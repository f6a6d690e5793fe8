#!/usr/bin/env python3
"""Compares this project with the installed official package, live and completely.

    python scripts/parity/live.py --reference-python REFERENCE_PYTHON --tiktoken DASHSCOPE_WHEEL

For every listed checkpoint: the listed cases, random ones from a printed seed, and the public methods' answers and
refusals. Compared are token ids, prompts, codes, finish reasons, hidden states, all logits and all samples, of the
native interface and of the drop-in class. One line per case with the largest errors; exit code 1 on any difference.

With --dtype bfloat16 both packages compute in bf16, and the cases that generate are compared as bf16.py says.
"""

import argparse
import json
import os
import secrets
import sys
import tempfile
from pathlib import Path

import bf16
import numpy as np
import torch
from checkpoints import build_checkpoint, listed_checkpoints, run_reference
from compare import Comparison, compare_generation
from project import Project
from public_api import probe, sampling_of
from random_cases import random_cases
from signals import signal

HERE = Path(__file__).resolve().parent


class Results:
    """The official package's results of one case: arrays by name, and `info`."""

    def __init__(self, folder, name):
        self.info = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["result"]
        with np.load(folder / f"{name}.npz") as archive:
            self.arrays = dict(archive)

    def __getitem__(self, name):
        return self.arrays[name]


def compare_case(project, case, theirs):
    """Everything that this project computes for the case, against the official results."""
    if case["kind"] == "codec_decode":
        result = Comparison()
        result.add("wav", project.decode(theirs["codes"], official_chunks=case["frames"] > 300), theirs["wav"])
        return result
    if case["kind"] == "codec_encode":
        result = Comparison()
        result.add_encoded("codes", project.tts.encoders.encode(signal(**case["signal"])), theirs["codes"],
                           theirs["margin"])
        return result
    if case["kind"] == "speaker_embedding":
        result = Comparison()
        result.add("speaker_embedding", project.tts.encoders.embed(signal(**case["signal"])), theirs["embedding"])
        return result
    if case["kind"] == "probe":
        result, ours = Comparison(), probe(project.dropin, case["model_type"])
        for name in sorted(ours.keys() | theirs.info.keys()):
            result.same(name, ours.get(name), theirs.info.get(name))
        return result
    arrays, finish = project.generate(case, theirs)
    sampling = sampling_of(case)
    result = compare_generation(arrays, theirs, greedy_scores=not (sampling["do_sample"]
                                                                   or sampling["subtalker_dosample"]))
    if finish is not None and not result.ties:
        result.same("finish", finish, theirs.info["finish"])
    return result


def report(checkpoint, case, result):
    """One line; True if there is no difference."""
    what = "codes_match" if result.codes else "match"
    found = f"{what}={'tie' if result.ties else 'true'}"
    if result.differences:
        found = f"{what}=false: {result.differences[0]}"
    errors = " ".join(f"{name} {error:.1e}" for name, error in result.errors.items())
    print(f"{checkpoint + '/' + case['name']:46s}  {found}  {errors}", flush=True)
    for text in (*result.ties, *result.differences[1:4]):
        print(f"    {text}")
    if result.differences:
        print("    case: " + json.dumps(case, ensure_ascii=False))
    return not result.differences


def cases_of(name, entry, count, seed, only):
    """Listed cases and random ones, if CHECKPOINT/CASE contains `only`."""
    listed = json.loads((HERE / "cases" / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    cases = [*listed, *random_cases(entry.model_type, count, f"{seed} {name}")]
    return [case for case in cases if only in f"{name}/{case['name']}"]


def compare_checkpoint(name, entry, a, work):
    """(cases, cases with a difference)."""
    cases = cases_of(name, entry, a.random, a.seed, a.only)
    if a.dtype == "bfloat16":  # the native interface strips white space from texts
        cases = [case for case in cases
                 if "rows" in case and all(row["text"] == row["text"].strip() for row in case["rows"])]
    if not cases:
        return 0, 0
    folder, outputs = build_checkpoint(name, work / "checkpoints", a.tiktoken), work / "outputs" / name
    spec = work / f"{name}.json"
    spec.write_text(json.dumps({"checkpoint": name, "cases": cases}), encoding="utf-8")
    run_reference(a.reference_python, folder, spec, outputs, a.dtype)
    rounded, different = a.dtype == "bfloat16", 0
    project = bf16.Pair(folder) if rounded else Project(folder)
    for case in cases:
        theirs = Results(outputs, case["name"])
        if rounded:
            found = bf16.distances(*project.arrays(case, theirs), theirs)
            different += not bf16.report(f"{name}/{case['name']}", found)
        else:
            different += not report(name, case, compare_case(project, case, theirs))
    return len(cases), different


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference-python", required=True, help="Python that has the official package")
    parser.add_argument("--tiktoken", default=os.environ.get("QWEN3TTS_DASHSCOPE_WHEEL"),
                        help="dashscope wheel, the real vocabulary (default: $QWEN3TTS_DASHSCOPE_WHEEL); without it "
                             "the small-* checkpoints are left out")
    parser.add_argument("--only", default="", help="only what has this in CHECKPOINT/CASE")
    parser.add_argument("--random", type=int, default=8, metavar="N", help="random cases per checkpoint (default: 8)")
    parser.add_argument("--seed", type=int, help="of the random cases (default: a new one, printed)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32",
                        help="what both packages compute in (default: %(default)s)")
    parser.add_argument("--work", type=Path, help="keep checkpoints and results here")
    a = parser.parse_args()
    a.seed = secrets.randbelow(2**31) if a.seed is None else a.seed
    torch.set_num_threads(1)
    print(f"random cases: --seed {a.seed} --random {a.random}")
    total = different = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, entry in listed_checkpoints().items():
            if entry.needs_real_vocabulary and not a.tiktoken:
                print(f"{name}: left out, it needs --tiktoken")
                continue
            cases, wrong = compare_checkpoint(name, entry, a, a.work or Path(scratch))
            total, different = total + cases, different + wrong
    print(f"{total} cases, {different} different" + ("" if total else ": nothing was compared"))
    sys.exit(1 if different or not total else 0)


if __name__ == "__main__":
    main()
