"""Wrong arguments of every wrapper are refused, named, before a kernel is reached; unusual right ones reach it."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from qwen3tts.backends.native import wrap_module
from qwen3tts.backends.native.blas import Blas
from qwen3tts.backends.native.checks import check_apart, number, whole
from qwen3tts.backends.native.decode.attention import (
    HeadNorms,
    KvPages,
    attention_workspace,
    predictor_attention,
    store_kv,
    talker_attention,
)
from qwen3tts.backends.native.decode.linear import Norm, linear
from qwen3tts.backends.native.rms_norm import add_rms_norm, rms_norm
from qwen3tts.backends.native.sampler import SamplerRow, exp_weights, pack_rows, sample
from qwen3tts.backends.native.skinny_product import skinny_product
from qwen3tts.backends.native.transposed_conv import pack_weight, transposed_conv
from qwen3tts.errors import KernelArgumentError
from qwen3tts.model.layers import RotaryTable
from qwen3tts.model.sampling import SamplingParams

NAN, INF, HUGE = float("nan"), float("inf"), 10**5000


class Reached(Exception):
    """A kernel was called."""


def reach(*arguments):
    raise Reached


KERNELS = (
    "rms_norm", "skinny_product", "sample", "sampler_weights", "transposed_conv_direct", "transposed_conv_tiled",
    "transposed_conv_gemm", "linear", "store_kv", "talker_attention", "predictor_attention",
)  # fmt: skip
MODULE = SimpleNamespace(
    **dict.fromkeys(KERNELS, reach),
    sampler_max_vocab=8192,
    attention_workspace_bytes=lambda *sizes: 64,
    TransposedConvArguments=lambda *fields: fields,
    Blas=lambda *arguments: SimpleNamespace(gemm=reach),
)
N = wrap_module(MODULE)
BLAS = Blas(N)
randn, empty = torch.randn, torch.empty


def negated(x):
    return torch._neg_view(x)


def overlapping(rows, width):
    """Rows at the distance of one element."""
    return empty(rows * width).as_strided((rows, width), (1, 1))


def expanded(rows, width):
    return empty(1, width).expand(rows, width)


X, OTHER, WEIGHT = randn(3, 8), randn(3, 8), randn(8)
MATRIX, WIDE = randn(4, 8), randn(3, 24)
HALF = X.to(torch.bfloat16)
BUFFER = randn(64)
LEFT, SHIFTED = BUFFER[:24].view(3, 8), BUFFER[4:28].view(3, 8)


def norm(x=X, weight=WEIGHT, eps=1e-6, **options):
    return rms_norm(N, x, weight, eps, **options)


def add_norm(x=X, residual=OTHER, weight=WEIGHT, eps=1e-6, **options):
    return add_rms_norm(N, x, residual, weight, eps, **options)


NORMS = [
    *((lambda eps=eps: norm(eps=eps), "eps is .*, expected a number from 0 to 3.4") for eps in ("x", None, [], True)),
    *((lambda eps=eps: norm(eps=eps), "eps is .*, expected a number") for eps in (NAN, INF, -1e-6, 1e39, HUGE, 1j)),
    (lambda: norm(X[:0], eps=NAN), "eps is nan"),
    (lambda: norm(negated(X)), r"x is a negated view.*x\.resolve_neg\(\)"),
    (lambda: norm(weight=negated(WEIGHT)), "weight is a negated view"),
    (lambda: norm(X.to_sparse()), "x has the layout torch.sparse_coo"),
    (lambda: norm(out=negated(empty(3, 8))), "out is a negated view"),
    (lambda: norm(out=expanded(3, 8)), "out has the strides .* its rows overlap"),
    (lambda: norm(out=overlapping(3, 8)), "out has the strides .* its rows overlap"),
    (lambda: norm(LEFT, out=SHIFTED), "out overlaps x: write to the very place of x"),
    (lambda: norm(SHIFTED, out=LEFT), "out overlaps x"),
    (lambda: norm(BUFFER.as_strided((3, 8), (16, 1)), out=LEFT), "out overlaps x"),
    (lambda: norm(weight=LEFT[1], out=LEFT), "out shares memory with weight"),
    (lambda: norm(out=5), "out is int, expected a tensor"),
    (lambda: add_norm(eps="x"), "eps is 'x'"),
    (lambda: add_norm(residual=negated(X)), "residual is a negated view"),
    (lambda: add_norm(total_out=expanded(3, 8)), "total_out has the strides"),
    (lambda: add_norm(out=overlapping(3, 8)), "out has the strides"),
    (lambda: add_norm(total_out=LEFT, out=LEFT), "total_out shares memory with out"),
    (lambda: add_norm(total_out=LEFT, out=SHIFTED), "total_out shares memory with out"),
    (lambda: add_norm(X, out=X, total_out=X), "total_out shares memory with out"),
    (lambda: add_norm(LEFT, total_out=SHIFTED), "total_out overlaps x"),
    (lambda: add_norm(residual=SHIFTED, total_out=LEFT), "total_out overlaps residual"),
    (lambda: add_norm(residual=SHIFTED, out=LEFT), "out overlaps residual"),
]

SKINNY = [
    (lambda: skinny_product(N, X, MATRIX, out=5), "out is int, expected a tensor"),
    (lambda: skinny_product(N, X, MATRIX, out=expanded(3, 4)), "out has the strides .* its rows overlap"),
    (lambda: skinny_product(N, X, MATRIX, out=overlapping(3, 4)), "out has the strides"),
    (lambda: skinny_product(N, X, randn(8, 8), out=X), "out shares memory with x"),
    (lambda: skinny_product(N, X, MATRIX, out=MATRIX[:2].view(4, 4)[:3]), "out shares memory with weight"),
    (lambda: skinny_product(N, X[:1], MATRIX, WEIGHT[:4], out=WEIGHT[None, :4]), "out shares memory with bias"),
    (lambda: skinny_product(N, WIDE[:, :8], randn(8, 8), out=WIDE[:, 4:12]), "out shares memory with x"),
    (lambda: skinny_product(N, WIDE[:, 20:24], randn(8, 4), out=WIDE[:, 14:22]), "out shares memory with x"),
    (lambda: skinny_product(N, X, negated(MATRIX)), "weight is a negated view"),
    *(
        (lambda dtype=dtype: skinny_product(N, X, MATRIX, dtype=dtype), "The output's dtype is")
        for dtype in ("float32", 5, [], torch.float64, torch.bool)
    ),
]

STRETCHED = (randn(1, 2, 3), randn(2, 3, 4), randn(3))


def conv(x=STRETCHED[0], weight=STRETCHED[1], bias=None, stride=2, method="direct", **options):
    return transposed_conv(N, x, weight, bias, stride, method=method, **options)


CONVOLUTIONS = [
    *(
        (lambda stride=stride: conv(stride=stride), "stride is .*, expected a whole number from 1 to 2147483647")
        for stride in (2.0, None, "2", True, 0, -2, 2**40, HUGE, torch.tensor(2))
    ),
    *((lambda method=method: conv(method=method), "The method is") for method in ([], None, 5, "fast")),
    (lambda: conv(method="gemm", blas=5), "blas is 5, expected a Blas"),
    (lambda: conv(negated(STRETCHED[0])), "x is a negated view"),
    (lambda: conv(out=expanded(3, 4)[None]), "out has the strides"),
    (lambda: conv(BUFFER[:6].view(1, 2, 3), out=BUFFER[:12].view(1, 3, 4)), "out shares memory with x"),
    (lambda: conv(weight=BUFFER[:24].view(2, 3, 4), out=BUFFER[:12].view(1, 3, 4)), "out shares memory with weight"),
    (lambda: conv(bias=BUFFER[5:8], out=BUFFER[:12].view(1, 3, 4)), "out shares memory with bias"),
    *(
        (lambda size=size: Blas(N, workspace_bytes=size), "workspace_bytes is .*, expected a whole number from 0")
        for size in (-1, 1.5, None, 2**60)
    ),
    (lambda: Blas(N, path=5), "path is 5, expected a str"),
    (lambda: BLAS.linear(LEFT, randn(8, 8), out=SHIFTED), "out shares memory with x"),
    (lambda: BLAS.linear(X, MATRIX, out=expanded(3, 4)), "out has the strides"),
    (lambda: BLAS.linear(negated(X), MATRIX), "x is a negated view"),
    (lambda: BLAS.linear(X, MATRIX, out=5), "out is int"),
]

ROW = SamplerRow(SamplingParams(True, 0.9, 50, 1.0), 3)
LOGITS, FRAMES = randn(2, 100), torch.zeros(2, dtype=torch.int32)
ROWS, SEEN = pack_rows([ROW] * 2, N.device), torch.zeros(2, 100, dtype=torch.bool)


def pick(logits=LOGITS, rows=ROWS, frames=FRAMES, codebook=0, **options):
    return sample(N, logits, rows, frames, codebook, **options)


def pack(**changes):
    params = {name: changes.pop(name) for name in SamplingParams.__dataclass_fields__ if name in changes}
    return pack_rows([ROW, replace(ROW, params=replace(ROW.params, **params), **changes)], N.device)


SHARED = torch.zeros(256, dtype=torch.uint8)
SAMPLING = [
    *(
        (lambda value=value: pick(codebook=value), "codebook is .*, expected a whole number from 0 to 2147483647")
        for value in (-1, 1.5, 2**40, "0", None, True, HUGE)
    ),
    *(
        (lambda value=value: pick(eos_id=value), "eos_id is .*, expected a whole number from 0 to 99")
        for value in (1.5, -1, 100, "5", True, 2**40)
    ),
    (lambda: pick(status=FRAMES), "status shares memory with frames"),
    (lambda: pick(LOGITS, status=LOGITS.view(torch.int32)[0, :2]), "status shares memory with logits"),
    (lambda: pick(seen=SEEN, suppressed=SEEN[1]), "seen shares memory with suppressed"),
    (lambda: pick(seen=SEEN[:1].expand(2, 100)), "seen has the strides"),
    (lambda: pick(out=SHARED[:16].view(torch.int64), status=SHARED[8:16].view(torch.int32)), "status shares .* out"),
    (lambda: pick(seen=SHARED[:200].view(torch.bool).view(2, 100), out=SHARED[:16].view(torch.int64)), "seen .* out"),
    (lambda: pick(rows=SHARED[:80].view(2, 40), out=SHARED[:16].view(torch.int64)), "out shares memory with rows"),
    (lambda: pick(negated(LOGITS)), "logits is a negated view"),
    (lambda: exp_weights(N, SHARED[:8].view(torch.float32), out=SHARED[:16].view(torch.int64)), "out shares .* x"),
    (lambda: exp_weights(N, negated(X)), "x is a negated view"),
    *(
        (lambda name=name, value=value: pack(**{name: value}), rf"rows\[1\]\.(params\.)?{name} is .*, expected")
        for name, values in {
            "seed": (-1, 2**64, 1.5, None, "1", True, HUGE),
            "part": (-1, 2**32, 0.5),
            "min_frames": (-1, 2**40, 1.0),
            "temperature": (INF, NAN, 0.0, -1.0, 1e-50, 1e50, "x", None),
            "repetition_penalty": (0.0, -1.0, NAN, INF, "x"),
            "top_k": (-1, 1.5, NAN, None, HUGE),
            "top_p": (NAN, -0.1, 1.1, "x", None),
            "do_sample": (1, "yes", None),
        }.items()
        for value in values
    ),
    (lambda: pack_rows(5, N.device), "rows is 5, expected a list or a tuple"),
    (lambda: pack_rows([ROW, 5], N.device), r"rows\[1\] is 5, expected a SamplerRow"),
    (lambda: pack_rows([replace(ROW, params=None)], N.device), r"rows\[0\]\.params is None, expected a SamplingParams"),
]

PRODUCTS = [
    (lambda: linear(N, X, 5), "weights is 5, expected a list or a tuple"),
    (lambda: linear(N, X, [MATRIX], norm=5), "norm is 5, expected a Norm"),
    (lambda: linear(N, X, [MATRIX], norm=Norm(WEIGHT, "x")), "norm.eps is 'x'"),
    (lambda: linear(N, X, [MATRIX], norm=Norm(WEIGHT, NAN)), "norm.eps is nan"),
    (lambda: linear(N, X, [MATRIX], epilogue=[]), r"epilogue is \[\]"),
    *((lambda kind=kind: linear(N, X, [MATRIX], output=kind), "output is") for kind in (torch.float64, [], "float32")),
    (lambda: linear(N, HALF, [MATRIX], output=torch.float16), "output is torch.float16, expected torch.bfloat16"),
    (lambda: linear(N, LEFT, [randn(8, 8)], out=SHIFTED), "out shares memory with x"),
    (lambda: linear(N, X, [randn(8, 8)], out=X, epilogue="residual"), "out shares memory with x"),
    (lambda: linear(N, X, [MATRIX], out=expanded(3, 4)), "out has the strides .* its rows overlap"),
    (lambda: linear(N, X, [MATRIX], out=overlapping(3, 4)), "out has the strides"),
    (lambda: linear(N, X, [MATRIX, MATRIX[:3]], out=BUFFER[:21].view(3, 7), bias=BUFFER[20:27]), "out shares .* bias"),
    (lambda: linear(N, X, [LEFT, MATRIX], out=BUFFER[10:31].view(3, 7)), r"out shares memory with weights\[0\]"),
    (lambda: linear(N, X, [randn(8, 8)], norm=Norm(WEIGHT, 0.0), out=LEFT, normed=LEFT), "out shares .* normed"),
    (lambda: linear(N, X, [MATRIX], norm=Norm(WEIGHT, 0.0), normed=X), "normed shares memory with x"),
]

HEADS = HeadNorms(randn(8), randn(8), 1e-6)
ROTARY = RotaryTable(SimpleNamespace(head_dim=8, rope_theta=1e6), 64, N.device, torch.float32)
QKV, SLOT, POSITION = randn(2, 24), torch.zeros(2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
PAGES = KvPages(randn(4, 1, 8, 8), randn(4, 1, 8, 8), torch.zeros(2, 2, dtype=torch.int32))
CACHES = (randn(2, 1, 16, 8), randn(2, 1, 16, 8))


def attend(qkv=QKV, norms=HEADS, rotary=ROTARY, slot=SLOT, position=POSITION, pages=PAGES, **options):
    return talker_attention(N, qkv, norms, rotary, slot, position, pages, **options)


def predict(qkv=QKV, keys=CACHES[0], values=CACHES[1], first=0, **options):
    return predictor_attention(N, qkv, HEADS, ROTARY, SLOT, keys, values, first, **options)


ATTENTION = [
    *((lambda value=value: attend(blocks=value), "blocks is .*, expected") for value in (1.5, -1, "1", 2**40)),
    (lambda: attend(stored=1), "stored is 1, expected True or False"),
    (lambda: attend(settled="x"), "settled is 'x', expected True or False"),
    (lambda: attend(norms=None), "norms is None, expected a HeadNorms"),
    (lambda: attend(norms=replace(HEADS, eps="x")), r"norms\.eps is 'x'"),
    (lambda: attend(rotary=5), "rotary is 5, expected a RotaryTable"),
    (lambda: attend(pages=5), "pages is 5, expected a KvPages"),
    (lambda: attend(negated(QKV)), "qkv is a negated view"),
    (lambda: attend(out=QKV.view(-1)[:16].view(2, 8)), "out shares memory with qkv"),
    (lambda: attend(out=PAGES.keys.view(-1)[8:24].view(2, 8)), r"pages\.keys shares memory with out"),
    (lambda: attend(pages=replace(PAGES, values=PAGES.keys)), r"pages\.keys shares memory with pages\.values"),
    (lambda: attend(workspace=PAGES.keys.view(torch.uint8).view(-1)), "shares memory with workspace"),
    (lambda: attend(norms=replace(HEADS, q=BUFFER[8:16]), out=BUFFER[:16].view(2, 8)), r"out shares .* norms\.q"),
    (lambda: attention_workspace(N, 1.5, 1, 1, 8), r"rows is 1\.5"),
    (lambda: attention_workspace(N, 1, 1, 1, 8, blocks=2**40), "blocks is"),
    (lambda: store_kv(N, QKV, HEADS, ROTARY, SLOT, POSITION, None), "pages is None"),
    (lambda: store_kv(N, QKV, replace(HEADS, k=PAGES.keys[0, 0, 0]), ROTARY, SLOT, POSITION, PAGES), r"norms\.k"),
    *((lambda value=value: predict(first=value), "first is .*, expected") for value in (1.5, None, -1, 16, 2**40)),
    (lambda: predict(values=CACHES[0]), "keys shares memory with values"),
    (lambda: predict(out=QKV.view(-1)[:16].view(2, 8)), "out shares memory with qkv"),
]

REFUSED = [*NORMS, *SKINNY, *CONVOLUTIONS, *SAMPLING, *PRODUCTS, *ATTENTION]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[f"{i}: {case[1]}" for i, case in enumerate(REFUSED)])
def test_refused(call, message):
    with pytest.raises(KernelArgumentError) as caught:
        call()
    text = str(caught.value)
    assert re.search(message, text), text
    assert text.endswith(".")
    assert not text.endswith("..")
    assert len(text) < 500


REACHING = {
    "a norm": norm,
    "numpy's numbers": lambda: norm(eps=np.float32(1e-6)),
    "no eps": lambda: norm(eps=0),
    "in place": lambda: norm(X, out=X),
    "strided in place": lambda: norm(WIDE[:, 4:12], out=WIDE[:, 4:12]),
    "beside the input": lambda: norm(WIDE[:, 0:8], out=WIDE[:, 8:16]),
    "before the input": lambda: norm(WIDE[:, 16:24], out=WIDE[:, 0:8]),
    "the same row again and again": lambda: norm(X[:1].expand(3, 8)),
    "one row of a wide output": lambda: norm(X[:1], out=WIDE[:1, 3:11]),
    "behind the input": lambda: norm(BUFFER[:24].view(3, 8), out=BUFFER[24:48].view(3, 8)),
    "x twice": lambda: add_norm(X, X),
    "sum and norm in place": lambda: add_norm(X, OTHER, total_out=OTHER, out=X),
    "x twice, in place": lambda: add_norm(X, X, total_out=X),
    "parts of a projection": lambda: skinny_product(N, WIDE[:, :8], randn(8, 8), out=WIDE[:, 8:16]),
    "a product with a numpy stride": lambda: conv(stride=np.int64(2)),
    "products": lambda: conv(weight=pack_weight(STRETCHED[1]), method="gemm", blas=BLAS),
    "the library's product": lambda: BLAS.linear(X, MATRIX),
    "a pick": lambda: pick(codebook=np.int32(3), eos_id=np.int64(5), seen=SEEN, status=FRAMES.clone()),
    "nobody's pick": lambda: pick(LOGITS[:0], ROWS[:0], FRAMES[:0], out=empty(0, dtype=torch.int64)),
    "linear in place of nothing": lambda: linear(N, X, [MATRIX], out=WIDE[:, 2:6], norm=Norm(WEIGHT, 1e-6)),
    "attention": attend,
    "with everything": lambda: attend(workspace=attention_workspace(N, 2, 1, 1, 8), out=empty(2, 8)),
    "storing": lambda: store_kv(N, QKV, HEADS, ROTARY, SLOT, POSITION, PAGES),
    "the predictor's attention": predict,
}


@pytest.mark.parametrize("name", REACHING)
def test_right_ones_reach_the_kernel(name):
    with pytest.raises(Reached):
        REACHING[name]()


def test_what_the_module_refuses_is_a_kernel_argument_error():
    """std::invalid_argument arrives as ValueError."""

    def refuse(*arguments):
        raise ValueError("rms_norm: too many rows: 9")

    refusing = wrap_module(SimpleNamespace(**{**vars(MODULE), **dict.fromkeys(KERNELS, refuse)}))
    for call in (
        lambda: rms_norm(refusing, X, WEIGHT, 1e-6),
        lambda: skinny_product(refusing, X, MATRIX),
        lambda: transposed_conv(refusing, *STRETCHED, 2, method="direct"),
        lambda: sample(refusing, LOGITS, ROWS, FRAMES, 0),
        lambda: linear(refusing, X, [MATRIX]),
        lambda: store_kv(refusing, QKV, HEADS, ROTARY, SLOT, POSITION, PAGES),
    ):
        with pytest.raises(KernelArgumentError, match=r"^rms_norm: too many rows: 9\.$"):
            call()


def test_packed_rows_hold_the_numbers():
    packed = pack(seed=np.uint64(2**64 - 1), part=2**32 - 1, min_frames=7, top_k=2**40, top_p=0.5, temperature=2)
    record = packed[1].numpy()
    assert record[:8].view(np.uint64)[0] == 2**64 - 1
    assert record[8:12].view(np.float32)[0] == 2.0
    assert record[16:36].view(np.int32).tolist() == [2**31 - 1, 2**23, 1, -1, 7]


def test_check_apart_agrees_with_the_elements(seed):
    """Never accepts two matrices of one buffer that have an element in common; refuses some that have none only where
    the distances of their rows differ."""
    rng = np.random.default_rng(seed)
    memory = torch.zeros(200)
    apart = 0
    for _ in range(2000):
        rows, width = rng.integers(1, 5, 2)
        steps = rng.integers(0, 12, 2) if rng.random() < 0.5 else [int(rng.integers(0, 12))] * 2
        views = [
            memory.as_strided((rows, width), (int(step) if name == "x" else max(int(step), int(width)), 1), int(start))
            for name, step, start in zip("yx", steps, rng.integers(0, 60, 2), strict=True)
        ]
        y, x = [
            {int(view.storage_offset()) + r * view.stride(0) + c for r in range(rows) for c in range(width)}
            for view in views
        ]
        try:
            check_apart({"y": views[0]}, {"x": views[1]})
        except KernelArgumentError:
            assert y & x or views[0].stride() != views[1].stride()
        else:
            assert not y & x
            apart += 1
    assert apart > 200


def test_numbers_as_they_are():
    assert whole("n", np.int64(5), 0, 9) == 5
    assert type(whole("n", np.uint8(5), 0, 9)) is int
    assert type(number("n", np.float32(0.5), 0, 9)) is float
    assert number("n", 3, 0, 9) == 3.0
