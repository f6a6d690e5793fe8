"""Every listed case of custom voice, voice design and clones equals the official package, in fp32 on the CPU.

The official results are fixtures (scripts/parity/make_fixtures.py); scripts/parity/live.py compares completely."""

import json
from pathlib import Path

import numpy as np
import pytest
from compare import Comparison, extra_samples, with_extra_samples
from fixtures import CaseArrays, thin
from public_api import probe
from signals import random_codes

import qwen3tts

CASES = Path(__file__).resolve().parents[2] / "scripts" / "parity" / "cases"


class Run:
    """This project's arrays of one case beside the official ones."""

    def __init__(self, project, archive, name, entry):
        self.checkpoint, self.case, self.result = name, entry["case"], entry["result"]
        self.theirs = CaseArrays(archive(name), self.case["name"])
        self.ours, self.finish = project(name).generate(self.case, self.theirs)
        self.rows = range(len(self.case["rows"]))

    def differences(self, *kinds):
        """Of the arrays of these kinds, every one of which must be there for every row."""
        found = Comparison()
        for kind in kinds:
            for r in self.rows:
                name = f"{kind}.{r}"
                ours, theirs = self.ours[name], self.theirs[name.removeprefix("dropin_")]
                if kind.endswith("wav"):
                    ours = with_extra_samples(ours, theirs, self.extra(r))
                found.add(name, thin(kind.removeprefix("dropin_"), ours, self.checkpoint), theirs)
        print({kind: f"{error:.1e}" for kind, error in found.errors.items()})
        return found.differences


    def extra(self, r):
        """Samples that the official waveform of a row has too many at its start."""
        reference = self.theirs.get(f"ref_codes.{r}")
        return 0 if reference is None else extra_samples(len(reference), len(self.ours[f"codes.{r}"]))


@pytest.fixture(scope="session")
def run(generation_case, project, archive):
    return Run(project, archive, *generation_case)


def test_token_ids(run):
    assert run.differences("text_ids") == []
    for r in run.rows:
        for kind in ("instruct_ids", "ref_ids"):
            theirs = run.theirs.get(f"{kind}.{r}")
            assert (theirs is None) == (f"{kind}.{r}" not in run.ours)
            if theirs is not None:
                np.testing.assert_array_equal(run.ours[f"{kind}.{r}"], theirs)


def test_prompt_and_trailing_text(run):
    found = Comparison()
    found.add("tts_pad", run.ours["tts_pad"], run.theirs["tts_pad"])
    assert run.differences("prefill", "trailing") + found.differences == []


def test_codes_and_finish_reasons(run):
    assert run.differences("codes") == []
    assert run.finish == run.result["finish"]


def test_teacher_forced_logits(run):
    assert run.differences("talker_logits", "predictor_logits") == []


def test_waveforms(run):
    """Of the native interface and of the drop-in class."""
    for interface in ("wav", "dropin_wav"):
        assert run.differences(interface) == []
        assert [len(run.ours[f"{interface}.{r}"]) + run.extra(r) for r in run.rows] == run.result["wav_samples"]


def test_codec_decode(codec_case, project, archive):
    name, entry = codec_case
    case, theirs = entry["case"], CaseArrays(archive(name), entry["case"]["name"])
    size = project(name).config.codec.decoder.codebook_size
    codes = random_codes(case["frames"], size, case["seed"])
    np.testing.assert_array_equal(codes, theirs["codes"])
    wav = project(name).decode(codes)
    assert wav.shape == (1920 * case["frames"],)
    found = Comparison()
    found.add("wav", thin("wav", wav, name), theirs["wav"])
    assert found.differences == []
    np.testing.assert_allclose(project(name).decode(codes, official_chunks=True), wav, atol=1e-6)  # one chunk


def test_public_methods(probe_case, project):
    """What the drop-in class lists, accepts (and how many samples come out) and refuses."""
    name, entry = probe_case
    assert probe(project(name).dropin, entry["case"]["model_type"]) == entry["result"]


def test_fixtures_belong_to_the_listed_cases(manifest):
    for name, checkpoint in manifest["checkpoints"].items():
        listed = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))["cases"]
        assert [entry["case"] for entry in checkpoint["cases"]] == listed, "run scripts/parity/make_fixtures.py"


def test_native_interface_refuses_the_instruct_that_the_official_package_drops(project):
    with pytest.raises(qwen3tts.errors.VoiceError, match="instruct"):
        project("tiny-custom_voice").tts.generate("Hello.", voice="uncle_fu", instruct="Speak in a warm voice.")


def test_drop_in_class_warns_where_the_official_class_is_silent(project):
    dropin = project("tiny-custom_voice").dropin
    with pytest.warns(UserWarning, match="instruct"):
        dropin.generate_custom_voice("Hello.", "uncle_fu", instruct="Speak in a warm voice.", max_new_tokens=2)
    with pytest.warns(UserWarning, match="no_such_option"):
        dropin.generate_custom_voice("Hello.", "uncle_fu", max_new_tokens=2, no_such_option=1)
