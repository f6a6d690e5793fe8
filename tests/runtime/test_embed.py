"""What the rows of a prompt are, from the definition (text/prompt.py), one after another."""

import numpy as np
import pytest
import torch

import qwen3tts
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.text.prompt import NO_CODEC, REFERENCE_ROW, SPEAKER_ROW, Prompt

GROUPS = 16


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def tts(tiny_checkpoint, request):
    with qwen3tts.load(tiny_checkpoint(model_type="base"), backend="cpu", dtype=request.param) as tts:
        yield tts


def by_definition(talker, prompt, x_vector, ref_codes):
    """Prefill and trailing rows. A product's bits depend on its rows' number, so tokens are projected all at once."""
    ids = sorted({*prompt.text_ids, *prompt.trailing_ids})
    text = dict(zip(ids, talker.text_projection(talker.model.text_embedding.weight[ids].to(talker.dtype)), strict=True))
    rows, frame = [], 0
    for token, codec in zip(prompt.text_ids, prompt.codec_ids, strict=True):
        row = text[token]
        if codec > NO_CODEC:
            row = row + talker.model.codec_embedding.weight[codec].to(talker.dtype)
        elif codec == SPEAKER_ROW:
            row = row + torch.tensor(x_vector).to(talker.dtype)
        elif codec == REFERENCE_ROW:
            row = row + talker.embed_frame(torch.tensor(ref_codes[frame : frame + 1].astype(np.int64)))[0]
            frame += 1
        rows.append(row)
    return torch.stack(rows), torch.stack([text[token] for token in prompt.trailing_ids])


@pytest.mark.parametrize("voice", ["preset", "x-vector", "reference", "nothing", "scattered"])
def test_rows_are_the_sums_of_their_definition(tts, voice, seed):
    print(f"seed {seed}")
    talker, rng = tts.engine.runtime.talker, np.random.default_rng(seed)
    vocabulary, codec = talker.config.text_vocab_size, talker.config.vocab_size
    frames = 6 if voice == "reference" else 0
    codes = [NO_CODEC] * 3 + list(rng.integers(codec, size=9)) + [REFERENCE_ROW] * frames
    if voice == "x-vector":
        codes[7] = SPEAKER_ROW
    elif voice == "nothing":
        codes = [NO_CODEC] * 4
    elif voice == "scattered":
        codes[5] = NO_CODEC
    text = rng.integers(vocabulary, size=len(codes) + 5)
    text[:2] = text[-2:]  # tokens come again
    prompt = Prompt(
        tuple(map(int, text[:-5])), tuple(map(int, codes)), tuple(map(int, text[-5:])), 1, reference_frames=frames
    )
    x_vector = rng.standard_normal(talker.config.transformer.hidden_size).astype(np.float32)
    ref_codes = rng.integers(talker.config.code_predictor.vocab_size, size=(frames, GROUPS)).astype(np.int16)
    vector = x_vector if voice == "x-vector" else None
    with exact_arithmetic(tts.device):
        prefill, trailing = tts.engine.embed(prompt, vector, ref_codes if frames else None)
        want, want_trailing = by_definition(talker, prompt, x_vector, ref_codes)
    assert prefill.dtype == talker.dtype
    assert torch.equal(prefill, want)
    assert torch.equal(trailing, want_trailing)
