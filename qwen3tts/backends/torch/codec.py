"""CodecDecoder in plain torch: one stream after another, fp32."""

from collections.abc import Sequence

import torch
from torch import Tensor

from qwen3tts.errors import NumericsError
from qwen3tts.model.causal import StreamState
from qwen3tts.model.codec_decoder import CodecDecoder
from qwen3tts.model.numerics import exact_arithmetic


def _finite(samples: Tensor) -> Tensor:
    if not torch.isfinite(samples).all():
        raise NumericsError("The codec's samples are not finite: its weights are damaged, or overflow in float32.")
    return samples


class TorchCodecDecoder:
    """See runtime.protocols.CodecDecoder."""

    def __init__(self, model: CodecDecoder, device: torch.device) -> None:
        self.model, self.device = model, device

    def open(self) -> StreamState:
        """See CodecDecoder."""
        return StreamState()

    def fork(self, state: StreamState) -> StreamState:
        """See CodecDecoder."""
        other = StreamState()  # its tensors are replaced, never written to, so both may hold the same ones
        other.frames, other.tails, other.window = state.frames, dict(state.tails), dict(state.window)
        return other

    def decode(self, states: Sequence[StreamState], codes: Sequence[Tensor]) -> list[Tensor]:
        """See CodecDecoder."""
        with exact_arithmetic(self.device):
            pieces = [
                self.model(new.to(self.device), state).cpu() if len(new) else torch.zeros(0)
                for state, new in zip(states, codes, strict=True)
            ]
        return [_finite(piece) for piece in pieces]

    def decode_official(self, codes: Tensor) -> Tensor:
        """See CodecDecoder."""
        with exact_arithmetic(self.device):
            pieces = [piece.cpu() for piece in self.model.decode_official(codes.to(self.device))]
        return _finite(torch.cat(pieces)) if pieces else torch.zeros(0)

    def close(self, state: StreamState) -> None:
        """See CodecDecoder."""
        state.tails.clear()
        state.window.clear()
