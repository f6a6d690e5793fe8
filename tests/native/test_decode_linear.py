"""The fused products of a decoder layer against plain torch, whatever stands beside a row, on both kinds of kernels."""

import ctypes

import pytest
import torch

from qwen3tts.backends.native.decode.linear import Norm, linear, linear_reference
from qwen3tts.backends.native.rms_norm import rms_norm_reference
from qwen3tts.errors import KernelArgumentError
from qwen3tts.model import layers

HALF = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALF)
# (outputs of each part, epilogue): parts that end within a tile, an odd number of outputs, several groups to a block.
KINDS = (
    ((40, 16, 24), "store"),
    ((33,), "residual"),
    ((21, 21), "silu_mul"),
)
# The released models' k, which have kernels of their own for up to 16 rows, with all numbers of weight rows to a block.
# (outputs of each part, k, epilogue, options)
NORMED, PLAIN, LOGITS = {"norm": True}, {"norm": False}, {"norm": True, "output": torch.float32}
RELEASED = (
    ((32, 16, 16), 1024, "store", NORMED),
    ((16,), 1024, "store", LOGITS),
    ((24, 24), 1024, "silu_mul", NORMED),
    ((16,), 2048, "residual", PLAIN),
    ((16,), 2048, "store", PLAIN | {"bias": True}),
    ((8,), 3072, "residual", PLAIN),
    ((16, 16), 2048, "store", NORMED),
    ((16,), 2048, "store", LOGITS),
    ((8, 8), 2048, "silu_mul", NORMED),
    ((8,), 6144, "residual", PLAIN),
)
RELEASED_WIDE = (
    ((2048, 1024, 1024), 1024, "store", NORMED),
    ((3072,), 1024, "store", LOGITS),
    ((1088,), 2048, "residual", PLAIN),
    ((2128, 2128), 2048, "silu_mul", NORMED),
)
EPS = 1e-6


def draw(generator, shape, dtype, scale=1.0):
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


@pytest.fixture
def generator(seed):
    return torch.Generator().manual_seed(seed)


class Product:
    """Random inputs of one product; `run` for any of its rows."""

    def __init__(
        self,
        native,
        generator,
        rows,
        k,
        parts,
        epilogue,
        dtype,
        *,
        norm=True,
        bias=False,
        weight_dtype=None,
        output=None,
    ):
        self.native, self.epilogue, self.output = native, epilogue, output
        weight_dtype = weight_dtype or dtype
        self.x = draw(generator, (rows, k), dtype).to(native.device)
        self.weights = [draw(generator, (n, k), weight_dtype, k**-0.5).to(native.device) for n in parts]
        self.norm = Norm(draw(generator, (k,), dtype).to(native.device), EPS) if norm else None
        self.bias = draw(generator, (sum(parts),), weight_dtype).to(native.device) if bias else None
        outputs = parts[0] if epilogue == "silu_mul" else sum(parts)
        self.before = draw(generator, (rows, outputs), output or dtype).to(native.device)
        self.normed = torch.full_like(self.x, float("nan")) if norm else None

    def run(self, rows=slice(None)):
        y = self.before[rows].clone()
        normed = None if self.normed is None else self.normed[rows]
        linear(
            self.native, self.x[rows], self.weights, norm=self.norm, bias=self.bias, epilogue=self.epilogue, out=y,
            output=self.output, normed=normed,
        )  # fmt: skip
        return y

    def reference(self, x, norm):
        """(expected y, its sums in the size of which errors are measured)."""
        options = {"norm": norm, "bias": self.bias}
        sums = linear_reference(x, self.weights, **options, output=torch.float32)
        y = linear_reference(
            x, self.weights, **options, epilogue=self.epilogue, y=self.before, output=self.output
        )  # fmt: skip
        return y, sums

    def check(self):
        got = self.run()
        if self.normed is not None:
            self.check_normed()
        # Sums of what the kernel itself has normed: so that a last bit of the norm does not count here again. In bf16
        # there is none, since the scale comes after the sum.
        inside = self.norm is not None and self.x.dtype != torch.bfloat16
        y, sums = self.reference(self.normed, None) if inside else self.reference(self.x, self.norm)
        assert_close(got, y, sums, self.epilogue)
        return got

    def check_normed(self):
        want = rms_norm_reference(self.x, self.norm.weight, EPS)
        error = (self.normed.double() - want.double()).abs()
        if self.x.dtype == torch.float32:
            assert (error <= 1e-6 * want.abs()).all()
        else:
            assert (error <= 2 * step(want)).all()
            assert (error > 0).double().mean() <= 0.02


def step(v):
    """At least the distance from v to the next number of its dtype."""
    return torch.finfo(v.dtype).eps * v.double().abs() + torch.finfo(v.dtype).smallest_normal


def assert_close(got, want, sums, epilogue):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    error = (got.double() - want.double()).abs()
    scale = sums.double().abs().max()
    if got.dtype == torch.float32:
        assert (error <= 2e-6 * max(1.0, scale) * (1 + want.double().abs())).all(), error.max()
        return
    # One rounding of a sum that goes the other way, and what becomes of it: at most that much ...
    if epilogue == "silu_mul":
        gate, up = sums.to(got.dtype).double().chunk(2, -1)
        allowed = 1.2 * torch.finfo(got.dtype).eps * (1.1 * gate.abs() * up.abs() + 0.5 * want.double().abs()) * 3
    else:
        allowed = step(sums.to(got.dtype)) + step(want)
    assert (error <= allowed + 2e-6 * scale).all(), (error - allowed).max()
    # ... and seldom.
    assert (error > 0).double().mean() <= max(0.02, 2.5 / error.numel()), (error > 0).double().mean()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", [True, False])
def test_equals_the_reference(native, generator, dtype, norm):
    for parts, epilogue in KINDS:
        for rows, k in ((1, 32), (3, 64), (8, 96), (9, 104), (2, 544), (17, 128)):
            Product(native, generator, rows, k, parts, epilogue, dtype, norm=norm).check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_and_unrounded_output(native, generator, dtype):
    for rows in (1, 10):
        Product(native, generator, rows, 128, (24, 9), "store", dtype, norm=False, bias=True).check()
        Product(native, generator, rows, 96, (17,), "store", dtype, bias=True, output=torch.float32).check()


@pytest.mark.parametrize("dtype", HALF)
def test_a_head_in_fp32(native, generator, dtype):
    for rows in (1, 3, 20):
        Product(
            native, generator, rows, 72, (37,), "store", dtype, weight_dtype=torch.float32, output=torch.float32
        ).check()  # fmt: skip


def test_equals_the_models_layers(native, generator):
    """Attention's input and the gated MLP, in bf16, as model.layers computes them."""
    k, inner = 64, 96
    norm = layers.RMSNorm(k, EPS)
    norm.weight.data = draw(generator, (k,), torch.bfloat16)
    gate, up = (draw(generator, (inner, k), torch.bfloat16, k**-0.5) for _ in range(2))
    down = draw(generator, (k, inner), torch.bfloat16, inner**-0.5)
    x = draw(generator, (5, k), torch.bfloat16)
    with torch.no_grad():
        v = norm(x)
        want = x + (torch.nn.functional.silu(v @ gate.T) * (v @ up.T)) @ down.T
    here = [t.to(native.device) for t in (x, norm.weight.data, gate, up, down)]
    got = here[0].clone()
    act = linear(native, got, here[2:4], norm=Norm(here[1], EPS), epilogue="silu_mul")
    linear(native, act, here[4:], epilogue="residual", out=got)
    # Rounded at other places, so not the same bits, but as near to what exact arithmetic gives.
    exact_x, norm_weight, gates, ups, downs = (t.double() for t in (x, norm.weight.data, gate, up, down))
    v = norm_weight * exact_x * torch.rsqrt(exact_x.square().mean(-1, keepdim=True) + EPS)
    exact = exact_x + (torch.nn.functional.silu(v @ gates.T) * (v @ ups.T)) @ downs.T
    error, torch_error = (got.cpu().double() - exact).norm(), (want.double() - exact).norm()
    assert error <= 1.2 * torch_error, (error, torch_error)


@pytest.mark.parametrize(
    ("dtype", "weight_dtype", "k"),
    [(torch.bfloat16,) * 2 + (288,), (torch.float16,) * 2 + (64,), (torch.bfloat16,) * 2 + (40,),
     (torch.float32,) * 2 + (296,), (torch.bfloat16, torch.float32, 288)],
)  # fmt: skip
def test_a_row_is_the_same_alone_and_among_others(native, generator, dtype, weight_dtype, k):
    """Every number of column tiles: 1, 2, 4, 8, and two blocks of 8."""
    for parts, epilogue, norm in (((19,), "residual", False), ((24, 8), "store", True), ((13, 13), "silu_mul", True)):
        product = Product(native, generator, 128, k, parts, epilogue, dtype, norm=norm, weight_dtype=weight_dtype)
        want, normed = product.run(), None if product.normed is None else product.normed.clone()
        for rows in (slice(0, 2), slice(1, 10), slice(30, 47), slice(64, 97), slice(60, 128), slice(127, 128)):
            assert torch.equal(product.run(rows), want[rows]), (epilogue, rows)
            if normed is not None:
                assert torch.equal(product.normed, normed), (epilogue, rows)


@pytest.mark.parametrize(("parts", "k", "epilogue", "options"), RELEASED)
def test_few_rows_have_the_bits_of_many(native, generator, parts, k, epilogue, options):
    """17 rows have another kernel."""
    product = Product(native, generator, 17, k, parts, epilogue, torch.bfloat16, **options)
    want, normed = product.check(), None if product.normed is None else product.normed.clone()
    for rows in (slice(0, 1), slice(1, 9), slice(2, 11), slice(1, 17)):
        if normed is not None:
            product.normed.fill_(float("nan"))
        assert torch.equal(product.run(rows), want[rows]), rows
        if normed is not None:
            assert torch.equal(product.normed[rows], normed[rows]), rows


@pytest.mark.parametrize(("parts", "k", "epilogue", "options"), RELEASED_WIDE)
def test_many_outputs_have_the_bits_of_few(native, generator, parts, k, epilogue, options):
    """3 and 4 eights of weight rows to a block, and several groups; against 17 rows of the first and last outputs."""
    product = Product(native, generator, 17, k, parts, epilogue, torch.bfloat16, **options)
    got = {rows: product.run(slice(0, rows)) for rows in (1, 10)}
    ends = [slice(0, 9), slice(parts[-1] - 9, parts[-1])]
    offset = 0 if epilogue == "silu_mul" else sum(parts[:-1])
    for end in ends:
        columns = slice(offset + end.start, offset + end.stop)
        weights = [w[end].contiguous() for w in (product.weights if epilogue == "silu_mul" else product.weights[-1:])]
        want = product.before[:, columns].clone()
        linear(native, product.x, weights, norm=product.norm, epilogue=epilogue, out=want, output=product.output)
        for rows, y in got.items():
            assert torch.equal(y[:, columns], want[:rows]), (rows, end)


@pytest.mark.parametrize("dtype", HALF)
def test_the_number_of_outputs_does_not_change_a_sum(native, generator, dtype):
    """Blocks of 8, 16 and 32 rows of weights, and several groups to a block, add up alike."""
    k, rows, outputs = 32, 2, 8500
    x, weight = (
        draw(generator, (rows, k), dtype).to(native.device),
        draw(generator, (outputs, k), dtype).to(native.device),
    )
    plain = linear(native, x, [weight])
    normed = linear(native, x, [weight], norm=Norm(torch.ones(k, dtype=dtype, device=native.device), EPS))
    for n in (9, 1030, 3100):
        assert torch.equal(linear(native, x, [weight[:n]]), plain[:, :n])
        norm = Norm(torch.ones(k, dtype=dtype, device=native.device), EPS)
        assert torch.equal(linear(native, x, [weight[:n]], norm=norm), normed[:, :n])
    assert_close(plain, linear_reference(x, [weight]), linear_reference(x, [weight], output=torch.float32), "store")


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_rows(native, generator, dtype):
    for rows, k, outputs, norm in ((1, 64, 23, True), (6, 64, 23, True), (6, 2048, 8, False), (11, 2048, 8, False)):
        product = Product(native, generator, rows, k, (outputs,), "residual", dtype, norm=norm)
        want = product.run()
        wide = torch.full((rows, k + 24), float("nan"), dtype=dtype, device=native.device)
        wide[:, 16 : 16 + k] = product.x
        y = torch.full((rows, outputs + 8), float("nan"), dtype=dtype, device=native.device)
        y[:, 5 : 5 + outputs] = product.before
        linear(
            native, wide[:, 16 : 16 + k], product.weights, norm=product.norm, epilogue="residual",
            out=y[:, 5 : 5 + outputs],
        )  # fmt: skip
        assert torch.equal(y[:, 5 : 5 + outputs], want)
        assert y[:, :5].isnan().all()
        assert y[:, 5 + outputs :].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_chain_of_dependent_launches(native, generator, dtype):
    """Launches that overlap give what they give one by one."""
    k, inner = (256, 256) if native.platform == "emulation" else (1024, 3072)
    weights = [
        draw(generator, shape, dtype, shape[1] ** -0.5).to(native.device)
        for shape in ((inner, k), (inner, k), (k, inner))
    ]
    norm = Norm(draw(generator, (k,), dtype).to(native.device), EPS)
    start = draw(generator, (4, k), dtype).to(native.device)

    def chain(between):
        x, act = start.clone(), torch.empty(4, inner, dtype=dtype, device=native.device)
        for _ in range(3 if native.platform == "emulation" else 50):
            linear(native, x, weights[:2], norm=norm, epilogue="silu_mul", out=act)
            between()
            linear(native, act, weights[2:], epilogue="residual", out=x)
            between()
        return x

    def wait():
        if native.device.type == "cuda":
            torch.cuda.synchronize(native.device)

    assert torch.equal(chain(lambda: None), chain(wait))


@pytest.mark.parametrize("wave", [32, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_touched_before_the_kernel_ahead_has_ended(emulated, wave, dtype, generator):
    """x and y get their values only when the kernel waits."""
    native = emulated(wave)
    library = ctypes.CDLL(native.module.__file__)
    library.emulation_arrive_at_wait.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    library.emulation_arrive_at_wait.restype = None
    library.emulation_pending_arrivals.restype = ctypes.c_size_t
    kinds = [((outputs,), 64, "residual", {"norm": norm}) for norm in (True, False) for outputs in (7, 8)]
    if dtype == torch.bfloat16:
        kinds += RELEASED
    for parts, k, epilogue, options in kinds:
        for rows in (1, 12):
            product = Product(native, generator, rows, k, parts, epilogue, dtype, **options)
            want = product.run()
            x, y = torch.full_like(product.x, float("nan")), torch.full_like(product.before, float("nan"))
            for to, source in ((x, product.x), (y, product.before)):
                library.emulation_arrive_at_wait(to.data_ptr(), source.data_ptr(), source.nbytes)
            linear(
                native, x, product.weights, norm=product.norm, bias=product.bias, epilogue=epilogue, out=y,
                output=product.output,
            )  # fmt: skip
            assert library.emulation_pending_arrivals() == 0
            assert torch.equal(y, want), (parts, k, epilogue, rows)


def test_not_a_number_stays_in_its_row(native, generator):
    for dtype, k, outputs in (*((dtype, 64, 18) for dtype in DTYPES), (torch.bfloat16, 1024, 16)):
        product = Product(native, generator, 3, k, (outputs,), "store", dtype)
        want = product.run()
        product.x[1, 5] = float("nan")
        got = product.run()
        assert got[1].isnan().all()
        assert torch.equal(got[::2], want[::2])


def test_refused(native, generator):
    product = Product(native, generator, 2, 64, (8, 8), "store", torch.bfloat16)
    x, weights, y = product.x, product.weights, product.before
    with pytest.raises(KernelArgumentError, match="at most 128"):
        linear(native, x.expand(65, 2, 64).reshape(130, 64), weights)
    with pytest.raises(KernelArgumentError, match="1 to 3"):
        linear(native, x, [])
    with pytest.raises(KernelArgumentError, match="expected float16 or float32|expected bfloat16 or float32"):
        linear(native, x, [w.half() for w in weights])
    with pytest.raises(KernelArgumentError, match="two weights of one shape"):
        linear(native, x, [weights[0], weights[1][:4]], epilogue="silu_mul")
    with pytest.raises(KernelArgumentError, match="give it as out="):
        linear(native, x, weights, epilogue="residual")
    with pytest.raises(KernelArgumentError, match="multiple of 8"):
        linear(native, x[:, :60].contiguous(), [w[:, :60].contiguous() for w in weights])
    with pytest.raises(KernelArgumentError, match="multiples of 16 bytes"):
        linear(native, torch.zeros(2, 65, dtype=x.dtype, device=x.device)[:, 1:], weights)
    with pytest.raises(KernelArgumentError, match="there is no norm"):
        linear(native, x, weights, normed=torch.empty_like(x))
    with pytest.raises(KernelArgumentError, match="out has the shape"):
        linear(native, x, weights, out=y[:, :15])
    with pytest.raises(KernelArgumentError, match="epilogue is 'add'"):
        linear(native, x, weights, epilogue="add")
