"""Weights on a GPU: the checkpoint's, wherever the table of text tokens lies, and what is not finite is found there."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import qwen3tts
from qwen3tts import GenerateOptions, RuntimeOptions, WeightsError
from qwen3tts.backends.torch.runtime import TEXT_TABLE
from qwen3tts.checkpoint.upload import upload
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.optimization.contents import checksums
from qwen3tts.text.prompt import Prompt

pytestmark = pytest.mark.gpu
OPTIONS = GenerateOptions(max_frames=6, seed=3)


@pytest.fixture(scope="module")
def gpu():
    return torch.device("cuda", 0)


def loaded(folder, gpu, dtype, where):
    return qwen3tts.load(
        folder, backend="torch", device=gpu, dtype=dtype, runtime=RuntimeOptions(text_table=where, max_streams=1)
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_table_may_lie_on_either_side(tiny_checkpoint, gpu, dtype):
    folder, codes = tiny_checkpoint(preset="tiny-mtp"), []
    with qwen3tts.load(folder, backend="cpu", dtype=dtype) as on_cpu:
        want = checksums(dict(on_cpu.engine.runtime.talker.named_parameters()))
    for where in ("host", "device", "host"):
        with loaded(folder, gpu, dtype, where) as tts:
            parameters = dict(tts.engine.runtime.talker.named_parameters())
            table = parameters[TEXT_TABLE]
            assert table.device.type == ("cpu" if where == "host" else "cuda")
            assert where == "device" or table.is_pinned()
            assert all(p.is_cuda for name, p in parameters.items() if name != TEXT_TABLE)
            assert checksums(parameters) == want
            codes.append(tts.generate("Good morning.", tts.voices[0], options=OPTIONS).codes)
    assert np.array_equal(codes[0], codes[1])
    assert np.array_equal(codes[0], codes[2])


def test_every_pair_of_dtypes_and_long_tensors(gpu, seed):
    generator = torch.Generator().manual_seed(seed)
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    sources = [torch.randn(n, generator=generator).to(d) for n in (1, 9_000_001, 77) for d in dtypes]
    for dtype in dtypes:
        targets = [torch.empty(len(source), dtype=dtype, device=gpu) for source in sources]
        assert upload(targets, lambda i: sources[i], gpu) == []
        for source, target in zip(sources, targets, strict=True):
            assert torch.equal(target.cpu(), source.to(dtype))
    sources[4][8_999_999] = torch.nan
    sources[0][0] = 1e30
    targets = [torch.empty(len(source), dtype=torch.float16, device=gpu) for source in sources]
    assert upload(targets, lambda i: sources[i], gpu) == [0, 4]


def test_a_damaged_weight_is_named(tiny_checkpoint, gpu, tmp_path):
    folder = shutil.copytree(tiny_checkpoint(), tmp_path / "damaged")
    weights = load_file(folder / "model.safetensors")
    name = "talker.model.layers.1.mlp.up_proj.weight"
    weights[name][3, 5] = torch.inf
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=f"{name}' has weights that are NaN or infinite"):
        loaded(folder, gpu, "bfloat16", "host")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_of_a_prompt_have_the_bits_of_separate_copies(tiny_checkpoint, gpu, dtype, seed):
    """One copy to the device and a plain addition, or indices of their own and additions by index."""
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    with loaded(tiny_checkpoint(), gpu, dtype, "host") as tts:
        talker = tts.engine.runtime.talker
        for codes in ([-1] * 3 + list(rng.integers(60, size=50)), [-1, 5, -1, *rng.integers(60, size=50)]):
            text = rng.integers(talker.config.text_vocab_size, size=len(codes) + 4).tolist()
            prompt = Prompt(tuple(text[:-4]), tuple(map(int, codes)), tuple(text[-4:]), 1)
            unique, at = np.unique(np.array(text), return_inverse=True)
            rows = np.flatnonzero(np.array(codes) >= 0)
            with exact_arithmetic(gpu):
                prefill, trailing = tts.engine.embed(prompt, None)
                table = talker.model.text_embedding.weight[torch.from_numpy(unique)].to(gpu)
                want = talker.text_projection(table.to(talker.dtype))[torch.from_numpy(at).to(gpu)]
                codec = torch.tensor(codes, device=gpu)[torch.from_numpy(rows).to(gpu)]
                want[: len(codes)].index_add_(0, torch.from_numpy(rows).to(gpu), talker.embed_codec(codec))
            assert torch.equal(torch.cat((prefill, trailing)), want)


def test_weights_lie_in_few_allocations(tiny_checkpoint, gpu):
    with loaded(tiny_checkpoint(preset="tiny-mtp"), gpu, "bfloat16", "host") as tts:
        runtime = tts.engine.runtime
        for module, most in ((runtime.talker, 2), (runtime.codec.model, 2)):
            parameters = [p for p in module.parameters() if p.is_cuda]
            places = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in parameters}
            assert len(parameters) > 20
            assert len(places) <= most
            assert sum(places.values()) <= sum(p.nbytes for p in parameters) + 512 * len(parameters)
