"""What the decode core reads of a talker: pointers into the Parameters' own storage, no second copy of any weight.

Two kinds of Parameters are stored in another dtype while the core runs, because kernels want them so; every value stays
exactly what it was, so the plain model computes the same and taking it back is exact, too:
  * heads (fp32) whose values all exist in the model's dtype, for the tensor cores. The head widens them when the plain
    model runs;
  * embedding tables that a fp32 model keeps as narrow as the file has them.
New on the device are only the tables behind the code predictor's input projection, where a model has one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from qwen3tts.backends.native.checks import DTYPE_CODES
from qwen3tts.backends.native.decode.projections import product
from qwen3tts.backends.native.module import Native
from qwen3tts.checkpoint.loading import joined
from qwen3tts.errors import KernelArgumentError
from qwen3tts.model.config import TransformerConfig
from qwen3tts.model.layers import Head, RotaryTable, independent_rows
from qwen3tts.model.layers import product as plain_product
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.model.talker import Talker

ALIGNMENT = 16
"""bytes; the kernels load as many at once"""


# ------------------------------------------------------------ Parameters in another dtype


def _set_storage(weight: Tensor, data: Tensor) -> None:
    with torch.inference_mode(False):
        weight.data = data


def _narrow_forward(head: Head) -> Callable[[Tensor], Tensor]:
    """Head.forward of a head that is not stored in fp32."""

    def forward(x: Tensor) -> Tensor:
        return plain_product(x.float(), head.weight.float())

    return forward


@dataclass
class StoredForm:
    """Which Parameters of a talker were given another dtype, and how to take that back."""

    changed: list[tuple[nn.Module, torch.dtype, torch.device]] = field(default_factory=list)
    """modules with the dtype that their weight had, and its device"""
    kept_wide: int = 0
    """heads with values that the model's dtype does not have"""

    def change(self, modules: Sequence[nn.Module], dtype: torch.dtype) -> None:
        """Stores the modules' weights in another dtype, in one allocation, the old storage being given up."""
        old = [_weight(module).detach() for module in modules]
        device = old[0].device if old else torch.device("cpu")
        new = joined([torch.empty(weight.shape, dtype=dtype, device="meta") for weight in old], device)
        for module, source, target in zip(modules, old, new, strict=True):
            self.changed.append((module, source.dtype, source.device))
            target.copy_(source)
            _set_storage(_weight(module), target)
            if isinstance(module, Head):
                vars(module)["forward"] = _narrow_forward(module)

    def restore(self) -> None:
        """Stores every weight as it was. May be called again."""
        while self.changed:
            module, dtype, device = self.changed[-1]
            weight = _weight(module)
            if (weight.dtype, weight.device) != (dtype, device):
                _set_storage(weight, weight.detach().to(device, dtype))
            if isinstance(module, Head):
                vars(module).pop("forward", None)
            self.changed.pop()


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def _exists_in(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether every value exists in the dtype; bounded pieces, so that little more memory is needed meanwhile."""
    return all(bool((rows.to(dtype).to(weight.dtype) == rows).all()) for rows in weight.detach().split(256))


def _embeddings(talker: Talker) -> list[nn.Embedding]:
    """The tables of codes 0, 1, ..."""
    tables = [talker.model.codec_embedding, *talker.code_predictor.model.codec_embedding]
    return [table for table in tables if isinstance(table, nn.Embedding)]


def _heads(talker: Talker) -> list[Head]:
    """The heads of codes 0, 1, ..."""
    heads = [talker.codec_head, *talker.code_predictor.lm_head]
    return [head for head in heads if isinstance(head, Head)]


def store_for_kernels(talker: Talker) -> StoredForm:
    """Gives heads and tables the dtype that the kernels read, where no value changes by it."""
    form, dtype = StoredForm(), talker.dtype
    try:
        tables: list[nn.Module] = [table for table in _embeddings(talker) if table.weight.dtype != dtype]
        heads = [head for head in _heads(talker) if head.weight.dtype != dtype]
        narrow = [head for head in heads if _exists_in(head.weight, dtype)]
        form.kept_wide = len(heads) - len(narrow)
        form.change([*tables, *narrow], dtype)
    except BaseException:
        form.restore()
        raise
    return form


# ------------------------------------------------------------ pointers


class DecodeWeights:
    """Fields of the C++ DecoderDescription (csrc/common/decode/decoder.h) that come from the model.

    Holds on to the storage of every pointer that it gives out, whatever becomes of the Parameters."""

    def __init__(self, talker: Talker, padding: Tensor, native: Native | None = None) -> None:
        """padding [hidden]: the text row of frames past the end of the text. native: whose products make the input
        tables; None: torch's. Raises KernelArgumentError for weights that the kernels cannot read where they are."""
        self.talker, self.dtype = talker, talker.dtype
        self.kept: list[Tensor] = []
        config, predictor = talker.config, talker.code_predictor
        tables: list[Tensor] = [table.weight for table in _embeddings(talker)]
        inputs, projection = tables[:-1], predictor.small_to_mtp_projection
        self.projected_bytes = 0
        if isinstance(projection, nn.Linear):
            inputs = self._projected(projection, inputs, native)
            self.projected_bytes = sum(table.nbytes for table in inputs)
        self.fields: dict[str, Any] = {
            "dtype": DTYPE_CODES[self.dtype],
            "eos_id": config.codec_eos_id,
            "talker": self._stack("talker", config.transformer, talker.model),
            "predictor": self._stack(
                "code_predictor", config.code_predictor.transformer, predictor.model
            )
            | self.angles("code_predictor", predictor.rotary),
            "codec_head": self._head(talker.codec_head),
            "heads": [self._head(head) for head in predictor.lm_head],
            "projection": 0,
            "projection_bias": 0,
            "tables": [self.pointer(f"table {i}", table) for i, table in enumerate(tables)],
            "inputs": [self.pointer(f"input table {i}", table) for i, table in enumerate(inputs)],
            "padding": self.pointer("padding", padding.detach().to(self.dtype)),
        }
        if isinstance(projection, nn.Linear):
            self.fields["projection"] = self.pointer("projection", projection.weight)
            self.fields["projection_bias"] = self.pointer("projection bias", projection.bias)

    def close(self) -> None:
        """Lets go of all weights; the pointers mean nothing from now on."""
        self.kept.clear()
        self.projected_bytes = 0

    def pointer(self, name: str, tensor: Tensor, dtype: torch.dtype | None = None) -> int:
        """The address of a tensor that is kept from now on. Raises KernelArgumentError if kernels cannot read it.

        dtype: what it must be in; None: the model's."""
        address = self._address(name, tensor, dtype)
        self.kept.append(tensor.detach())
        return address

    def _address(self, name: str, tensor: Tensor, dtype: torch.dtype | None = None) -> int:
        wanted, address = dtype or self.dtype, tensor.data_ptr()
        problem = None
        if tensor.dtype != wanted:
            problem = f"in {tensor.dtype}, expected {wanted}"
        elif not tensor.is_contiguous():
            problem = f"not contiguous: strides {tensor.stride()} at shape {tuple(tensor.shape)}"
        elif tensor.device != self.talker.device:
            problem = f"on {tensor.device}, expected {self.talker.device}"
        elif address % ALIGNMENT or not address:
            problem = f"at the address {address:#x}, expected a multiple of {ALIGNMENT} bytes"
        if problem is not None:
            raise KernelArgumentError(f"The decode core cannot read {name}: it is {problem}.")
        return address

    def _projected(self, projection: nn.Linear, tables: list[Tensor], native: Native | None) -> list[Tensor]:
        """The tables as the code predictor sees them, row by row."""
        if native is not None:
            return [product(native, projection, table.detach()) for table in tables]
        with exact_arithmetic(self.talker.device), independent_rows():
            return [projection(table) for table in tables]

    def _head(self, head: Any) -> dict[str, int]:
        weight: Tensor = head.weight
        pointer = self.pointer("a head", weight, weight.dtype if weight.dtype == torch.float32 else None)
        return {"weight": pointer, "vocab": weight.shape[0], "dtype": DTYPE_CODES[weight.dtype]}

    def _stack(self, name: str, config: TransformerConfig, model: Any) -> dict[str, Any]:
        return {
            "geometry": {
                "hidden": config.hidden_size,
                "layers": config.num_layers,
                "heads": config.num_heads,
                "kv_heads": config.num_kv_heads,
                "head_dim": config.head_dim,
                "intermediate": config.intermediate_size,
                "eps": config.rms_norm_eps,
            },
            "layers": [
                {part: self.pointer(f"{part} of {name} layer {i}", weight) for part, weight in _layer(block)}
                for i, block in enumerate(model.layers)
            ],
            "norm": self.pointer(f"the norm of {name}", model.norm.weight),
        }

    def angles(self, name: str, rotary: RotaryTable) -> dict[str, int]:
        """A stack's fields of rotary tables, which the caller keeps."""
        return {
            "cos": self._address(f"the cosines of {name}", rotary.cos),
            "sin": self._address(f"the sines of {name}", rotary.sin),
            "positions": rotary.cos.shape[0],
        }


def _layer(block: Any) -> Iterator[tuple[str, Tensor]]:
    """LayerWeights of csrc/common/decode/decoder.h."""
    attention, mlp = block.self_attn, block.mlp
    yield "input_norm", block.input_layernorm.weight
    yield "q", attention.q_proj.weight
    yield "k", attention.k_proj.weight
    yield "v", attention.v_proj.weight
    yield "q_norm", attention.q_norm.weight
    yield "k_norm", attention.k_norm.weight
    yield "o", attention.o_proj.weight
    yield "post_norm", block.post_attention_layernorm.weight
    yield "gate", mlp.gate_proj.weight
    yield "up", mlp.up_proj.weight
    yield "down", mlp.down_proj.weight
