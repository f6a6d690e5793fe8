"""Text rows and input tables by the decode core's products: the plain ones up to rounding, a row's bits its own."""

from dataclasses import replace

import pytest
import torch

import qwen3tts
from qwen3tts import GenerateOptions, RuntimeOptions
from qwen3tts.backends.native.custom_kernels import CustomKernels
from qwen3tts.backends.native.decode import part
from qwen3tts.backends.native.decode.projections import ROWS, product, projection_problem
from qwen3tts.errors import OptimizationApplicationError, OptimizationCompatibilityError
from qwen3tts.model.numerics import exact_arithmetic

SIZES = {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "num_code_groups": 3}
NARROW = {
    "config": {
        "talker_config": SIZES
        | {"hidden_size": 32, "code_predictor_config": SIZES | {"hidden_size": 16, "num_hidden_layers": 1}}
    },
    "speech_tokenizer": {"encoder_valid_num_quantizers": 3, "decoder_config": {"num_quantizers": 3}},
}
PASS = CustomKernels(norms=False, sampler=False, decode=True, frames_per_replay=2, projections=True)
OPTIONS = GenerateOptions(max_frames=4, seed=5)


@pytest.fixture(params=["float32", "bfloat16"])
def tts(tiny_checkpoint, emulated, request):
    folder = tiny_checkpoint(preset="tiny-mtp", eos_gain=1.0, override=NARROW)
    runtime = RuntimeOptions(max_streams=1, max_positions=128)
    with qwen3tts.load(folder, backend="cpu", dtype=request.param, runtime=runtime) as tts:
        tts.engine.runtime.native = emulated(64)
        yield tts


def test_text_rows_and_tables(tts, seed):
    print(f"seed {seed}")
    runtime = tts.engine.runtime
    talker, native = runtime.talker, runtime.native
    ids = torch.randint(talker.config.text_vocab_size, (ROWS + 7,), generator=torch.Generator().manual_seed(seed))
    with exact_arithmetic(tts.device):
        plain = talker.embed_text(ids)
        spoken = tts.generate("Good morning.", "ryan", "english", options=OPTIONS, decode=False)
        tts.apply_optimization_plan(PASS)
        rows = talker.embed_text(ids)
        bound = 1e-5 if talker.dtype == torch.float32 else 2e-2
        assert float((rows - plain).abs().max()) <= bound * float(plain.abs().max())
        for layer in (talker.text_projection.linear_fc1, talker.text_projection.linear_fc2):
            x = talker.model.text_embedding(ids).to(talker.dtype)
            pieces = [product(native, layer, piece) for piece in x.split([1, 2, ROWS - 1, 5])]
            assert torch.equal(product(native, layer, x), torch.cat(pieces))
        projection, core = talker.code_predictor.small_to_mtp_projection, runtime.frames.core
        tables = talker.code_predictor.model.codec_embedding
        kept = {tensor.data_ptr(): tensor for tensor in core.weights.kept}
        made = [kept[address] for address in core.weights.fields["inputs"][1:]]
        for table, input_table in zip(tables, made, strict=False):
            assert torch.equal(input_table[3:5], product(native, projection, table.weight[3:5]))
        if talker.dtype == torch.float32:
            again = tts.generate("Good morning.", "ryan", "english", options=OPTIONS, decode=False)
            assert again.codes.tolist() == spoken.codes.tolist()
        tts.restore_optimization_plan()
        assert "forward" not in vars(talker.text_projection)
        assert torch.equal(talker.embed_text(ids), plain)


def test_a_failed_start_takes_it_back(tts, monkeypatch):
    def failing(*arguments, **options):
        raise RuntimeError("no memory")

    monkeypatch.setattr(part, "NativeFrameDecoder", failing)
    with pytest.raises(OptimizationApplicationError, match="no memory"):
        tts.apply_optimization_plan(PASS)
    assert "forward" not in vars(tts.engine.runtime.talker.text_projection)


def test_what_the_products_cannot_do_is_said():
    assert projection_problem([torch.nn.Linear(16, 3)]) is None
    assert "12 inputs" in projection_problem([torch.nn.Linear(16, 3), torch.nn.Linear(12, 3)])


def test_auto_leaves_out_what_the_products_cannot_take(tiny_checkpoint, emulated, caplog):
    """36 inputs: "auto" runs the core beside torch's projection; True says what is wrong before anything is changed."""
    config = NARROW["config"]["talker_config"] | {"text_hidden_size": 36}
    folder = tiny_checkpoint(preset="tiny-mtp", eos_gain=1.0, override=NARROW | {"config": {"talker_config": config}})
    with qwen3tts.load(folder, backend="cpu", runtime=RuntimeOptions(max_streams=1, max_positions=128)) as tts:
        runtime = tts.engine.runtime
        runtime.native = emulated(64)
        plain = runtime.frames
        with pytest.raises(OptimizationCompatibilityError, match="36 inputs; the decode core takes multiples of 8"):
            tts.apply_optimization_plan(PASS)
        assert runtime.frames is plain
        caplog.set_level("INFO", "qwen3tts")
        tts.apply_optimization_plan(replace(PASS, decode="auto"))
        assert runtime.frames is not plain
        assert "text rows stay with torch's products" in caplog.text
        assert "forward" not in vars(runtime.talker.text_projection)
        assert len(tts.generate("Good morning.", "ryan", "english", options=OPTIONS).codes)


def test_the_plain_padding_row_is_not_kept(tts):
    """Made while the products are the core's, it has their bits; the restored model makes its own."""
    runtime = tts.engine.runtime
    plain = runtime.frames
    plain._pad = lambda: runtime.talker.embed_text(torch.tensor([runtime.config.tts_pad_id]))[0]  # as on a GPU
    tts.apply_optimization_plan(PASS)
    tts.generate("Good morning.", "ryan", "english", options=replace(OPTIONS, rng="torch"), decode=False)
    assert plain._made_pad is not None
    tts.restore_optimization_plan()
    assert plain._made_pad is None
