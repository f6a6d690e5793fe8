"""Voices made from the cases' recordings equal the official package's, and so does speech from audio in one call."""

import numpy as np
import pytest
import torch
from compare import EMBEDDING_LIMIT, MARGIN_LIMIT, WAV_LIMIT, extra_samples, with_extra_samples
from fixtures import CaseArrays, thin
from project import is_icl
from public_api import sampling_of
from signals import SAMPLE_RATE, signal

import qwen3tts


@pytest.fixture(scope="session")
def case(clone_case, project, archive):
    """(checkpoint, case, official arrays, project)."""
    name, entry = clone_case
    return name, entry, CaseArrays(archive(name), entry["case"]["name"]), project(name)


def test_voices(case):
    _, entry, theirs, project = case
    items = project.prompts(entry["case"])
    for r, row in enumerate(entry["case"]["rows"]):
        reference = row["reference"]
        audio = signal(**reference["signal"]), SAMPLE_RATE
        voice = project.tts.clone(audio, reference.get("text"), silent_tail=0)
        for embedding in (voice.x_vector, items[f"speaker_embedding.{r}"]):
            np.testing.assert_allclose(embedding, theirs[f"speaker_embedding.{r}"], atol=EMBEDDING_LIMIT)
        assert voice.kind == reference["mode"]
        if is_icl(row):
            np.testing.assert_array_equal(voice.ref_codes, theirs[f"ref_codes.{r}"])
            np.testing.assert_array_equal(items[f"ref_codes.{r}"], theirs[f"ref_codes.{r}"])


def test_speech_from_audio(case):
    """One call with everything, where the official results were made with prompts."""
    name, entry, theirs, project = case
    spec, rows = entry["case"], entry["case"]["rows"]
    torch.manual_seed(spec.get("seed", 0))
    wavs, _ = project.dropin.generate_voice_clone(
        [row["text"] for row in rows], language=[row["language"] for row in rows],
        ref_audio=[(signal(**row["reference"]["signal"]), SAMPLE_RATE) for row in rows],
        ref_text=[row["reference"].get("text") for row in rows],
        x_vector_only_mode=[not is_icl(row) for row in rows],
        non_streaming_mode=spec["non_streaming_mode"], max_new_tokens=spec["max_new_tokens"], **sampling_of(spec),
    )  # fmt: skip
    for r, wav in enumerate(wavs):
        reference = theirs.get(f"ref_codes.{r}")
        extra = 0 if reference is None else extra_samples(len(reference), len(theirs[f"codes.{r}"]))
        assert len(wav) + extra == entry["result"]["wav_samples"][r]
        ours = thin("wav", with_extra_samples(wav, theirs[f"wav.{r}"], extra), name)
        np.testing.assert_allclose(ours, theirs[f"wav.{r}"], atol=WAV_LIMIT)


def test_tokenizer(encode_case, project, archive):
    """Qwen3TTSTokenizer, loaded from the checkpoint's codec folder."""
    name, entry = encode_case
    theirs = CaseArrays(archive(name), entry["case"]["name"])
    folder = project(name).tts.encoders.checkpoint.path / "speech_tokenizer"
    codec = qwen3tts.Qwen3TTSTokenizer.from_pretrained(folder)
    codes = codec.encode(signal(**entry["case"]["signal"]), SAMPLE_RATE).audio_codes[0]
    assert codes.shape == theirs["codes"].shape
    clear = np.minimum.accumulate(theirs["margin"], 1) > MARGIN_LIMIT  # after a near tie the residual is another
    np.testing.assert_array_equal(codes.numpy()[clear], theirs["codes"][clear])
    assert clear.mean() > 0.5
