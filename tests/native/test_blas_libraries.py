"""How the vendors' BLAS libraries are called, against stand-ins with their functions and numbers: rows and columns,
type codes, stream and workspace. Only a card can tell whether the real ones agree."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent / "fake_blas"
CSRC = HERE.parents[2] / "csrc"
LIBRARIES = {
    "cublas": ("cublas", "libcublas.so.13", ("-DFAKE_CUBLAS",)),
    "hipblas1": ("hipblas", "libhipblas.so.1", ("-DFAKE_HIPBLAS=1",)),
    "hipblas2": ("hipblas", "libhipblas.so.2", ("-DFAKE_HIPBLAS=2",)),
    "hipblas3": ("hipblas", "libhipblas.so.3", ("-DFAKE_HIPBLAS=3",)),
    "rocblas": ("rocblas", "librocblas.so.4", ("-DFAKE_ROCBLAS",)),
}


def compile_shared(source, target, *flags):
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{CSRC}", *flags, str(source), "-o", str(target)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blas")
    sources = [folder / "blas_check.cpp", HERE / "host.cpp"]
    sources[0].write_text('#include "common/blas.cpp"\n')
    joined = folder / "host.cpp"
    joined.write_text("".join(f'#include "{source}"\n' for source in sources))
    library = ctypes.CDLL(str(compile_shared(joined, folder / "libhost.so", "-Wall", "-Wextra", "-Werror")))
    library.run.argtypes = [ctypes.c_char_p, ctypes.c_char_p, *[ctypes.c_void_p] * 4, ctypes.c_int, ctypes.c_float,
                            ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]  # fmt: skip
    return library


@pytest.fixture(scope="module", params=LIBRARIES)
def library(request, tmp_path_factory):
    kind, name, flags = LIBRARIES[request.param]
    return kind, compile_shared(HERE / "library.cpp", tmp_path_factory.mktemp("fake") / name, *flags)


def run(host, kind, path, sizes, a, b, c, transposed, beta):
    text = ctypes.create_string_buffer(4096)
    packed = (ctypes.c_int64 * 10)(*sizes)
    code = {torch.float32: 0, torch.bfloat16: 1}[a.dtype]
    status = host.run(kind.encode(), str(path).encode(), ctypes.addressof(packed), a.data_ptr(), b.data_ptr(),
                      c.data_ptr(), transposed, beta, code, 64, text, len(text))  # fmt: skip
    return status, text.value.decode()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_products_of_row_major_matrices(host, library, dtype, transposed, beta):
    kind, path = library
    seed = torch.seed() % 2**31
    print("seed", seed)
    generator = torch.Generator().manual_seed(seed)
    m, n, k, batch = 5, 3, 7, 2
    # rows further apart than they are long, one A for all
    a = torch.randn(m, k + 2, generator=generator).to(dtype)
    b = torch.randn(batch, n if transposed else k, (k if transposed else n) + 1, generator=generator).to(dtype)
    c = torch.randn(batch, m, n + 4, generator=generator)
    right = b[..., :k].mT if transposed else b[..., :n]
    want = c.clone()
    want[..., :n] = a[:, :k].float() @ right.float() + (want[..., :n] if beta else 0)
    sizes = (m, n, k, batch, a.stride(0), b.stride(1), c.stride(1), 0, b.stride(0), c.stride(0))
    status, text = run(host, kind, path, sizes, a, b, c, transposed, beta)
    assert (status, kind in text.lower()) == (0, True), text
    assert path.name in text
    torch.testing.assert_close(c, want, rtol=1e-5, atol=1e-5)


def test_a_librarys_refusal_is_told(host, library):
    kind, path = library
    x = torch.zeros(4, 4, dtype=torch.bfloat16)
    y = torch.zeros(4, 4)
    sizes = (4, 4, 4, 1, 4, 4, 4, 16, 16, 16)
    assert run(host, kind, path, sizes, x, x, y, False, 0.0)[0] == 0
    status, text = run(host, kind, path, (4, 4, 0, 1, 4, 4, 4, 16, 16, 16), x, x, y, False, 0.0)
    assert status == 1
    assert "k is 0" in text


def test_a_library_of_another_kind_is_told(host, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty") / "empty.cpp"
    empty.write_text('extern "C" int nothing() { return 0; }\n')
    path = compile_shared(empty, empty.with_name("libcublas.so.13"))
    x = torch.zeros(1, 1)
    for kind, symbol in (("cublas", "cublas"), ("hipblas", "hipblas"), ("rocblas", "rocblas")):
        status, text = run(host, kind, path, (1, 1, 1, 1, 1, 1, 1, 1, 1, 1), x, x, x.clone(), False, 0.0)
        assert status == 1
        assert f"libcublas.so.13 has no {symbol}" in text
    status, text = run(host, "cublas", path.with_name("absent.so"), (1,) * 10, x, x, x.clone(), False, 0.0)
    assert status == 1
    assert "cuBLAS was not found" in text
    assert "absent.so" in text
