"""The text projection, and the code predictor's input projection of whole tables, by the decode core's products.

A row's bits do not depend on how many rows there are, so a token's row is the same in any text, and a text that arrives
in pieces has the rows of the whole one. torch's library need not be opened: its handle takes a workspace, and its
kernels take device memory, too."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from qwen3tts.backends.native.checks import DTYPE_CODES
from qwen3tts.backends.native.decode.linear import EPILOGUES
from qwen3tts.backends.native.module import Native
from qwen3tts.model.talker import Talker, TextProjection

ROWS = 64
"""of one launch"""


def product(native: Native, layer: nn.Linear, x: Tensor) -> Tensor:
    """layer(x): [N, in] -> [N, out] in the layer's dtype, with its bias; fp32 sums, rounded once."""
    weight, bias = layer.weight, layer.bias
    x, out = x.contiguous(), x.new_empty(x.shape[0], weight.shape[0])
    dtype, stream, addend = DTYPE_CODES[x.dtype], native.stream(), 0 if bias is None else bias.data_ptr()
    k, n, size = weight.shape[1], weight.shape[0], x.element_size()
    for first in range(0, x.shape[0], ROWS):
        native.module.linear(
            x.data_ptr() + first * k * size, k, 0, 0.0, [(weight.data_ptr(), n)], addend,
            out.data_ptr() + first * n * size, n, 0, min(ROWS, x.shape[0] - first), k, dtype, dtype, dtype,
            EPILOGUES["store"], stream,
        )  # fmt: skip
    return out


def text_projection(native: Native, projection: TextProjection) -> Callable[[Tensor], Tensor]:
    """TextProjection.forward by these products."""

    def forward(x: Tensor) -> Tensor:
        return product(native, projection.linear_fc2, F.silu(product(native, projection.linear_fc1, x)))

    return forward


def projection_problem(layers: list[nn.Linear]) -> str | None:
    """Why the products cannot stand for these layers; None: they can."""
    for layer in layers:
        if layer.weight.shape[1] % 8:
            return f"A projection has {layer.weight.shape[1]} inputs; the decode core takes multiples of 8."
    return None


def linear_layers(talker: Talker) -> list[nn.Linear]:
    """The text projection's layers, and the code predictor's input projection where there is one."""
    parts: tuple[nn.Module, ...] = (talker.text_projection, talker.code_predictor.small_to_mtp_projection)
    return [layer for part in parts for layer in part.modules() if isinstance(layer, nn.Linear)]
