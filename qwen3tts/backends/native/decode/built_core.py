"""Makes the native module's Decoder for a state and weights, with what it reads and nothing else keeps."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qwen3tts.backends.native.decode.capture import Captured, capture_graphs
from qwen3tts.backends.native.decode.state import DecoderState
from qwen3tts.backends.native.decode.weights import DecodeWeights
from qwen3tts.backends.native.module import Native
from qwen3tts.model.layers import RotaryTable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CoreOptions:
    """What stays the same when a core is made anew."""

    max_positions: int
    buckets: Sequence[int]
    """numbers of rows with graphs of their own"""
    frames_per_replay: int
    graphs: bool
    persistent_predictor: bool


@dataclass(frozen=True)
class BuiltCore:
    """A core, its workspace, rotary tables and graphs."""

    core: Any
    workspace: Tensor
    rotary: RotaryTable
    captured: tuple[Captured, ...]


def build_core(native: Native, state: DecoderState, weights: DecodeWeights, options: CoreOptions) -> BuiltCore:
    """A core for the tensors as they are now, its graphs captured. Nothing may be running.

    Raises KernelArgumentError for weights, ValueError for sizes that do not fit together."""
    fields, rotary = weights.fields, _rotary(state, weights, options.max_positions)
    description = fields | {
        "state": state.fields(),
        "talker": fields["talker"] | weights.angles("talker", rotary) | {"pool": state.talker_pool()},
        "predictor": fields["predictor"] | {"pool": state.slot_pool()},
        "suppressed": state.suppressed.data_ptr(),
        "ring": state.ring.data_ptr(),
        "ring_frames": state.per_replay,
        "persistent_predictor": options.persistent_predictor,
        "workspace": 0,
        "workspace_size": 0,
    }
    decoder, device = native.module.Decoder, state.device
    size = decoder.workspace_bytes(description)
    with torch.inference_mode(False):
        workspace = torch.zeros(size, dtype=torch.uint8, device=device)
    core = decoder(description | {"workspace": workspace.data_ptr(), "workspace_size": size})
    logger.debug("made a decode core with rotary tables and workspace")
    if not options.graphs:
        return BuiltCore(core, workspace, rotary, ())
    captured = capture_graphs(core, options.buckets, (1, options.frames_per_replay), device, native.stream())
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return BuiltCore(core, workspace, rotary, captured)


def _rotary(state: DecoderState, weights: DecodeWeights, max_positions: int) -> RotaryTable:
    """Rotary tables for every position that a row can have in the pool as it is now, and a page beyond: the plain
    model's are as long as its context."""
    pages, page = state.pool.shape[2], state.pool.shape[4]
    talker = weights.talker
    positions = page + min(pages * page, max_positions)
    return RotaryTable(talker.config.transformer, positions, talker.device, talker.dtype)
