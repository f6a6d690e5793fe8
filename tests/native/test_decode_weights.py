"""Weights as the decode core reads them: every value stays, in the same Parameter, and can be taken back exactly."""

import pytest
import torch

import qwen3tts
from qwen3tts.backends.native.checks import DTYPE_CODES
from qwen3tts.backends.native.decode.weights import DecodeWeights, store_for_kernels
from qwen3tts.backends.torch.runtime import allocation
from qwen3tts.errors import KernelArgumentError
from qwen3tts.model.layers import independent_rows
from qwen3tts.model.numerics import exact_arithmetic


def padding(runtime):
    with exact_arithmetic(runtime.device):
        return runtime.talker.embed_text(torch.tensor([runtime.config.tts_pad_id], device=runtime.device))[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_weights_keep_their_values_in_the_form_for_kernels(tiny_checkpoint, seed, dtype):
    with qwen3tts.load(tiny_checkpoint(preset="tiny-mtp"), backend="cpu", dtype=dtype) as tts:
        talker, runtime = tts.engine.runtime.talker, tts.engine.runtime
        wide = talker.code_predictor.lm_head[3]
        with torch.no_grad():
            wide.weight[2, 1] = 1.0 + 2**-20  # no narrower dtype has it
        before = {name: (p, p.dtype, p.detach().clone()) for name, p in talker.named_parameters()}
        x = torch.randn(3, talker.config.transformer.hidden_size, generator=torch.Generator().manual_seed(seed))
        x = x.to(talker.dtype)
        logits = talker.logits(x)
        form = store_for_kernels(talker)
        weights = DecodeWeights(talker, padding(runtime))
        for name, p in talker.named_parameters():
            was, _, value = before[name]
            assert p is was
            assert torch.equal(p.detach().float(), value.float())
        assert torch.equal(talker.logits(x), logits)
        heads = [head.weight.dtype for head in (talker.codec_head, *talker.code_predictor.lm_head)]
        assert wide.weight.dtype == torch.float32
        assert set(heads) <= {talker.dtype, torch.float32}
        if dtype == "bfloat16":
            assert heads.count(torch.float32) == form.kept_wide == 1
        assert {table.weight.dtype for table in talker.code_predictor.model.codec_embedding} == {talker.dtype}
        assert [head["dtype"] for head in weights.fields["heads"]] == [DTYPE_CODES[kind] for kind in heads[1:]]
        with exact_arithmetic(runtime.device), independent_rows():
            table = talker.code_predictor.model.codec_embedding[0].weight[5:6]
            projected = talker.code_predictor.small_to_mtp_projection(table)
        (kept,) = [t for t in weights.kept if t.data_ptr() == weights.fields["inputs"][1]]
        assert torch.equal(kept[5:6], projected)
        for _ in range(2):
            form.restore()
        for name, p in talker.named_parameters():
            was, kind, value = before[name]
            assert p is was
            assert p.dtype == kind
            assert torch.equal(p, value)
        assert not any("forward" in vars(module) for module in talker.modules())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_what_is_given_up_was_loaded_apart_and_comes_to_lie_in_one_piece(tiny_checkpoint, dtype):
    """Else its memory would stay, as a part of what holds other weights."""
    folder = tiny_checkpoint(preset="tiny-mtp")
    with qwen3tts.load(folder, backend="cpu", dtype=dtype) as tts:
        runtime, talker = tts.engine.runtime, tts.engine.runtime.talker
        with runtime.checkpoint.model_weights() as reader:
            stored = {name: reader.dtype(f"talker.{name}") for name, _ in talker.named_parameters()}
        places = {name: allocation(f"talker.{name}", kind, dtype) for name, kind in stored.items()}
        names = {id(p): name for name, p in talker.named_parameters()}
        form = store_for_kernels(talker)
        changed = [module.weight for module, _, _ in form.changed]
        given_up = {name for name, place in places.items() if place == "given up"}
        assert set(stored.values()) == {torch.bfloat16}
        assert len(changed) > 10
        assert {places[names[id(weight)]] for weight in changed} <= {"given up", None}
        assert given_up <= {names[id(weight)] for weight in changed}
        assert bool(given_up) == (dtype != torch.float16)
        assert len({weight.untyped_storage().data_ptr() for weight in changed}) == 1
        assert changed[0].untyped_storage().nbytes() < sum(weight.nbytes for weight in changed) + 512 * len(changed)
        assert places["model.text_embedding.weight"] == "weights"
        form.restore()


def test_weights_that_kernels_cannot_read_are_refused(tiny_checkpoint):
    with qwen3tts.load(tiny_checkpoint(), backend="cpu", dtype="bfloat16") as tts:
        runtime = tts.engine.runtime
        weights = DecodeWeights(runtime.talker, padding(runtime))
        x = torch.zeros(64, dtype=torch.bfloat16)
        for problem, tensor in (
            ("in torch.float64, expected torch.bfloat16", x.double()),
            ("not contiguous", x.view(8, 8).T),
            ("expected a multiple of 16 bytes", x[1:]),
            ("on meta, expected cpu", x.to("meta")),
        ):
            with pytest.raises(KernelArgumentError, match=f"cannot read it: it is .*{problem}"):
                weights.pointer("it", tensor)
