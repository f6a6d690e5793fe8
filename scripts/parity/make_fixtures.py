#!/usr/bin/env python3
"""Makes the committed fixtures of tests/parity from a run of the official package.

    python scripts/parity/make_fixtures.py --reference-python REFERENCE_PYTHON --tiktoken DASHSCOPE_WHEEL

builds the listed checkpoints, runs reference.py on every file of cases/ and writes tests/parity/fixtures; then, in
bfloat16, the cases that bf16.py lists, into bf16.npz and bf16.json. The same versions give the same bytes; those of
bfloat16 on the same kind of CPU. `--outputs DIR` takes the results of an earlier run instead, `--bf16` makes those of
bfloat16 alone.
"""

import argparse
import json
import tempfile
from pathlib import Path

import bf16
import numpy as np
from checkpoints import build_checkpoint, run_reference
from fixtures import LOGIT_FRAMES, WAV_STRIDE, logit_strides, save_npz, thin

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parents[1] / "tests" / "parity" / "fixtures"
LIMIT_BYTES = 2_000_000


def collect(checkpoint, outputs):
    """(arrays, manifest entry) of one checkpoint from the results of reference.py."""
    arrays, cases = {}, []
    for case in read_cases(checkpoint):
        record = json.loads((outputs / f"{case['name']}.json").read_text(encoding="utf-8"))
        if record["case"] != case:
            raise SystemExit(f"{case['name']}: the results were made from another version of the case; run it again")
        with np.load(outputs / f"{case['name']}.npz") as result:
            kept = {name: thin(name, result[name], checkpoint) for name in result.files}
        arrays |= {f"{case['name']}/{name}": value for name, value in kept.items() if value is not None}
        cases.append({"case": case, "result": record["result"]})
    entry = {"logit_column_strides": logit_strides(checkpoint), "cases": cases}
    return arrays, entry, record["versions"], record["run"]


def write_bf16(a, work):
    """bf16.npz and bf16.json: a few cases of the official package in bfloat16."""
    arrays, manifest = {}, {"checkpoints": {}}
    for name, wanted in bf16.CASES.items():
        cases = [case for case in read_cases(name) if case["name"] in wanted]
        spec, outputs = work / f"{name}.json", work / "bf16" / name
        spec.write_text(json.dumps({"checkpoint": name, "cases": cases}), encoding="utf-8")
        folder = build_checkpoint(name, work / "checkpoints", a.tiktoken)
        run_reference(a.reference_python, folder, spec, outputs, "bfloat16")
        manifest["checkpoints"][name] = cases
        for case in cases:
            record = json.loads((outputs / f"{case['name']}.json").read_text(encoding="utf-8"))
            manifest |= {"versions": record["versions"], "run": record["run"]}
            with np.load(outputs / f"{case['name']}.npz") as result:
                kept = {key: bf16.keep(key, result[key], name) for key in result.files}
            arrays |= {f"{name}/{case['name']}/{key}": value for key, value in kept.items() if value is not None}
    save_npz(a.out / "bf16.npz", arrays)
    (a.out / "bf16.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_cases(checkpoint):
    return json.loads((HERE / "cases" / f"{checkpoint}.json").read_text(encoding="utf-8"))["cases"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference-python", help="Python that has the official package")
    parser.add_argument("--tiktoken", help="dashscope wheel: the real vocabulary, for the small-* checkpoints")
    parser.add_argument("--outputs", type=Path, help="results of reference.py; nothing is run then")
    parser.add_argument("--out", type=Path, default=FIXTURES, help="folder to write (default: %(default)s)")
    parser.add_argument("--bf16", action="store_true", help="make only bf16.npz and bf16.json")
    a = parser.parse_args()
    if not a.outputs and not (a.reference_python and (a.tiktoken or a.bf16)):
        parser.error("give --reference-python and --tiktoken, or --outputs")
    names = sorted(path.stem for path in (HERE / "cases").glob("*.json"))
    with tempfile.TemporaryDirectory() as work:
        outputs = a.outputs
        if outputs is None and not a.bf16:
            outputs = Path(work) / "outputs"
            for name in names:
                folder = build_checkpoint(name, Path(work) / "checkpoints", a.tiktoken)
                run_reference(a.reference_python, folder, HERE / "cases" / f"{name}.json", outputs)
        if not a.bf16:
            write(names, outputs, a.out)
        if a.reference_python:
            write_bf16(a, Path(work))
        check_size(a.out)


def write(names, outputs, out):
    out.mkdir(parents=True, exist_ok=True)
    manifest = {"wav_stride": WAV_STRIDE, "logit_frames": LOGIT_FRAMES, "checkpoints": {}}
    for name in names:
        arrays, entry, manifest["versions"], manifest["run"] = collect(name, outputs)
        save_npz(out / f"{name}.npz", arrays)
        manifest["checkpoints"][name] = entry
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def check_size(out):
    """Raises SystemExit if the fixtures are too large for a repository."""
    total = sum(path.stat().st_size for path in out.iterdir())
    print(f"{total / 1e6:.2f} MB in {out}")
    if total > LIMIT_BYTES:
        raise SystemExit(f"the fixtures may take {LIMIT_BYTES / 1e6:.0f} MB: widen the strides in fixtures.py")


if __name__ == "__main__":
    main()
