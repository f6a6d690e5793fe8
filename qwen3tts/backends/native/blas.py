"""Matrix products by the vendor's library, found when it is first asked for; see csrc/common/blas.h."""

from typing import Any

import torch
from torch import Tensor

from qwen3tts.backends.native.checks import DTYPE_CODES, FLOATS, check, check_apart, instance, whole
from qwen3tts.backends.native.module import Native
from qwen3tts.errors import BackendError, KernelArgumentError

WORKSPACE_BYTES = 32 << 20
"""What cuBLAS's own kernels for the newest cards ask for at most."""


class Blas:
    """cuBLAS, hipBLAS or rocBLAS: a handle and its workspace on one device.

    Products of one object follow one another on one stream; two streams that run at the same time take two objects.
    Make it before a graph is captured, and run each shape once."""

    def __init__(self, native: Native, *, workspace_bytes: int = WORKSPACE_BYTES, path: str = "") -> None:
        """path: the library's file; empty: the one that torch has loaded, else what the system finds.

        Raises BackendError that says what was tried, KernelArgumentError for arguments that are no size and no path."""
        whole("workspace_bytes", workspace_bytes, 0, 2**40)
        instance("path", path, str)
        self.native = native
        device = native.device.index or 0
        try:
            self.handle: Any = native.module.Blas(device, workspace_bytes, path)
        except RuntimeError as error:
            raise BackendError(f"No BLAS library for the backend {native.name!r}: {error}") from error

    @property
    def library(self) -> str:
        """Name, version and file."""
        name: str = self.handle.library
        return name

    def linear(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """x [m, k] times the transpose of weight [n, k], both contiguous and of one dtype -> [m, n].

        out: where to write, of x's dtype or float32, apart from the others. Raises KernelArgumentError."""
        native = self.native
        check("x", x, native=native, dtype=FLOATS, shape=(None, None))
        check("weight", weight, native=native, dtype=x.dtype, shape=(None, x.shape[1]))
        m, k, n = x.shape[0], x.shape[1], weight.shape[0]
        y = torch.empty(m, n, dtype=x.dtype, device=x.device) if out is None else out
        check("out", y, native=native, dtype={x.dtype, torch.float32}, shape=(m, n))
        if k == 0:
            raise KernelArgumentError("x has no columns, expected at least one.")
        if out is not None:
            check_apart({"out": out}, {"x": x, "weight": weight})
        try:
            self.handle.gemm(
                x.data_ptr(), weight.data_ptr(), y.data_ptr(), m, n, k, 1, k, k, n, 0, 0, 0, True, 0.0,
                DTYPE_CODES[x.dtype], DTYPE_CODES[y.dtype], native.stream(),
            )  # fmt: skip
        except ValueError as error:  # std::invalid_argument
            raise KernelArgumentError(f"{error}.") from error
        return y
