"""Loads a checkpoint into the plain torch model."""

import logging
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from qwen3tts.backends.native.module import Native
from qwen3tts.backends.torch.codec import TorchCodecDecoder
from qwen3tts.backends.torch.frame_decoder import TorchFrameDecoder
from qwen3tts.checkpoint import Checkpoint, load_module
from qwen3tts.checkpoint.loading import reload_parameters
from qwen3tts.errors import OptionError, WeightsError
from qwen3tts.model.causal import CausalConvTranspose1d
from qwen3tts.model.codec_decoder import CodecDecoder
from qwen3tts.model.layers import RotaryTable
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.model.talker import Talker
from qwen3tts.options import RuntimeOptions

logger = logging.getLogger(__name__)

TEXT_TABLE = "model.text_embedding.weight"


def stored_dtype(key: str, stored: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a tensor is kept when the model computes in `dtype`.

    Heads stay in fp32 (see model.layers.Head). Tables that are only looked up stay as narrow as the file has them:
    widening a row when it is read gives the same number for half the memory."""
    if _is_head(key):
        return torch.float32
    if "_embedding" in key and dtype == torch.float32 and stored in (torch.bfloat16, torch.float16):
        return stored
    return dtype


def _is_head(key: str) -> bool:
    return "codec_head" in key or "lm_head" in key


def given_up(key: str, stored: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether the decode core will want a tensor of the talker in another dtype than the plain model keeps it in."""
    changes = stored_dtype(key, stored, dtype) != dtype and not key.endswith(TEXT_TABLE)
    return changes and (stored == dtype or not _is_head(key))


def allocation(key: str, stored: torch.dtype, dtype: torch.dtype) -> str | None:
    """Which allocation on a GPU a tensor of the talker lies in; see load_module. What is given up later lies apart, and
    alone where it is not sure that all of it is."""
    if given_up(key, stored, dtype):
        return "given up"
    return None if _is_head(key) and dtype != torch.float32 else "weights"


def on_host(device: torch.device, options: RuntimeOptions) -> frozenset[str]:
    """Names of the talker's parameters that a GPU's model keeps in host memory."""
    return frozenset({TEXT_TABLE}) if device.type == "cuda" and options.text_table == "host" else frozenset()


def page_lock(owner: object, tensor: Tensor) -> Callable[[], object]:
    """Locks a tensor's memory, which is then never swapped out. What this returns unlocks it; so does `owner`'s end."""
    runtime: Any = torch.cuda.cudart()
    address = tensor.data_ptr()
    code = int(runtime.cudaHostRegister(address, tensor.nbytes, 0))
    if code:
        logger.warning("The text embedding table stays in ordinary memory: it could not be page-locked (%d).", code)

    def unlock(held: Tensor) -> None:  # held: memory is freed after it was unlocked
        if not code:
            runtime.cudaHostUnregister(held.data_ptr())

    return weakref.finalize(owner, unlock, tensor.detach())


class TorchRuntime:
    """See runtime.protocols.Runtime."""

    native: Native | None = None
    """kernels that optimization passes may call; set by the backends that have some"""

    def __init__(
        self,
        checkpoint: Checkpoint,
        talker: Talker,
        codec: CodecDecoder,
        options: RuntimeOptions,
        max_positions: int,
    ) -> None:
        self.checkpoint, config = checkpoint, checkpoint.config
        self.config, self.device, self.dtype, self.talker = config, talker.device, talker.dtype, talker
        self.max_positions = max_positions
        self._on_host = on_host(self.device, options)
        table = talker.model.text_embedding.weight
        self._unlock = page_lock(self, table) if TEXT_TABLE in self._on_host else None
        with exact_arithmetic(self.device):
            codec.prepare()
            logger.debug("derived the codec's tables")
            talker.prepare(max_positions)
            logger.debug("made the rotary tables")

            def padding() -> Tensor:
                return talker.embed_text(torch.tensor([config.tts_pad_id]))[0]

            # on a GPU only when it is needed: a handle of torch's BLAS takes 100 MB there
            text_padding = padding if self.device.type == "cuda" else padding()
        slots = options.with_streams(None).max_streams
        assert slots is not None
        self.frames = TorchFrameDecoder(
            talker, text_padding, slots=slots, max_positions=max_positions, kv_bytes=options.kv_bytes
        )
        self.codec = TorchCodecDecoder(codec, self.device)

    def reload_weights(self, names: Iterable[str] | None = None) -> None:
        """Reads parameters from the checkpoint again, into the same Parameter objects: bit-equal to the first time.

        names: keys of the state_dicts after "talker." or "codec."; None: all. Raises WeightsError."""
        wanted: dict[str, list[str]] = {"talker": [], "codec": []}
        for name in names or ():
            part, _, key = name.partition(".")
            if part not in wanted:
                raise WeightsError(f"{name!r} does not begin with 'talker.' or 'codec.'")
            wanted[part].append(key)
        device, dtype = self.device, self.dtype
        if names is None or wanted["talker"]:
            with self.checkpoint.model_weights() as weights:
                reload_parameters(
                    self.talker,
                    weights,
                    prefix="talker.",
                    device=device,
                    dtype_of=lambda key, stored: stored_dtype(key, stored, dtype),
                    names=None if names is None else wanted["talker"],
                    on_host=self._on_host,
                )
        if names is None or wanted["codec"]:
            with self.checkpoint.codec_weights() as weights:
                reload_parameters(
                    self.codec.model,
                    weights,
                    prefix="decoder.",
                    device=device,
                    dtype_of=lambda key, stored: torch.float32,
                    names=None if names is None else wanted["codec"],
                )

    def close(self) -> None:
        """Drops rows, weights and what was derived from them, whoever else still holds the runtime."""
        self.frames.close()
        if self._unlock is not None:
            self._unlock()
        for module in (self.talker, self.codec.model):
            module.to("meta")
            for part in module.modules():  # parameters and buffers are elsewhere
                for name in [name for name, value in vars(part).items() if isinstance(value, Tensor | RotaryTable)]:
                    delattr(part, name)


def load_runtime(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, options: RuntimeOptions
) -> TorchRuntime:
    """Reads the weights: the talker in `dtype`, codec and heads in fp32. Raises CheckpointError or OptionError."""
    config = checkpoint.config
    context, on_gpu = config.talker.transformer.max_positions, device.type == "cuda"
    if options.max_positions is not None and options.max_positions > context:
        raise OptionError(f"max_positions is {options.max_positions}, but the model was made for {context}.")
    with torch.device("meta"):
        talker = Talker(config.talker)
        codec = CodecDecoder(config.codec.decoder, config.codec.samples_per_frame)
    with checkpoint.model_weights() as weights:
        load_module(
            talker,
            weights,
            prefix="talker.",
            device=device,
            dtype_of=lambda key, stored: stored_dtype(key, stored, dtype),
            on_host=on_host(device, options),
            together=lambda key, stored: allocation(key, stored, dtype) if on_gpu else None,
        )
    logger.debug("read the weights of talker and code predictor")
    transposed = [name for name, module in codec.named_modules() if isinstance(module, CausalConvTranspose1d)]
    repacked = {f"decoder.{name}.conv.weight" for name in transposed}
    with checkpoint.codec_weights() as weights:
        load_module(
            codec,
            weights,
            prefix="decoder.",
            device=device,
            dtype_of=lambda key, stored: torch.float32,
            # codec-kernels gives up the one kind, all of it, for another order
            together=lambda key, stored: ("repacked" if key in repacked else "weights") if on_gpu else None,
        )
    logger.debug("read the weights of the codec")
    return TorchRuntime(checkpoint, talker.eval(), codec.eval(), options, options.max_positions or context)
