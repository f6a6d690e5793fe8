"""The codec decoder: codes [T, 16] to 24 kHz samples, 1920 a frame, exact at any length and any chunking.

Everything is causal, so a stream is decoded in pieces that carry a StreamState. Long inputs are
cut into CHUNK frames for memory's sake alone; the result does not depend on it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qwen3tts.model.causal import Causal, CausalConv1d, CausalConvTranspose1d, SnakeBeta, StreamState
from qwen3tts.model.config import CodecDecoderConfig, TransformerConfig
from qwen3tts.model.layers import DecoderBlock, RMSNorm, RotaryTable, causal_attention, run_blocks

CHUNK = 48
OFFICIAL_CHUNK, OFFICIAL_CONTEXT = 300, 25


class Codebook(nn.Module):
    """Entry = embedding_sum / max(cluster_usage, 1e-5)."""

    entries: Tensor

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.empty(size))
        self.embedding_sum = nn.Parameter(torch.empty(size, width))

    def prepare(self) -> None:
        """Call once after loading."""
        self.entries = self.embedding_sum / self.cluster_usage.clamp(min=1e-5)[:, None]


class _Layer(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self._codebook = Codebook(size, width)


class _Books(nn.Module):
    def __init__(self, books: int, size: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(size, width) for _ in range(books))


class ResidualQuantizer(nn.Module):
    """Sum of the entries of some codebooks, then a 1x1 convolution. The file's input_proj serves encoding only."""

    def __init__(self, books: int, size: int, width: int) -> None:
        super().__init__()
        self.vq = _Books(books, size, width // 2)
        self.output_proj = nn.Conv1d(width // 2, width, 1, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        """int64 [T, books] -> [1, width, T]."""
        tables = [module.entries for module in self.vq.modules() if isinstance(module, Codebook)]
        total = F.embedding(codes[:, 0], tables[0])
        for i, table in enumerate(tables[1:], 1):
            total = total + F.embedding(codes[:, i], table)
        out: Tensor = self.output_proj(total.T[None])
        return out


class Quantizer(nn.Module):
    """Book 0 and books 1..15 have their own output projections; the two results are added."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.rvq_first = ResidualQuantizer(1, config.codebook_size, config.codebook_dim)
        self.rvq_rest = ResidualQuantizer(config.num_quantizers - 1, config.codebook_size, config.codebook_dim)

    def forward(self, codes: Tensor) -> Tensor:
        out: Tensor = self.rvq_first(codes[:, :1]) + self.rvq_rest(codes[:, 1:])
        return out


class WindowCache:
    """AttentionCache over new frames and the window - 1 frames before them."""

    def __init__(self, state: StreamState, window: int, steps: int, device: torch.device) -> None:
        self.state, self.keep = state, window - 1
        self.positions = torch.arange(steps, device=device)
        past = min(state.frames, self.keep)
        query = torch.arange(past, past + steps, device=device)[:, None]
        key = torch.arange(past + steps, device=device)
        self.mask = (key <= query) & (key > query - window)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See layers.AttentionCache."""
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        if layer in self.state.window:
            old_k, old_v = self.state.window[layer]
            k, v = torch.cat((old_k, k), 2), torch.cat((old_v, v), 2)
        start = max(0, k.shape[2] - self.keep)
        self.state.window[layer] = (k[:, :, start:].clone(), v[:, :, start:].clone())
        return causal_attention(q, k, v, self.mask)[0].transpose(0, 1).flatten(1)


class FrameTransformer(nn.Module):
    """8 blocks over frames with a sliding window, between two projections."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        t: TransformerConfig = config.transformer
        self.config, self.window = t, config.sliding_window
        self.input_proj = nn.Linear(config.latent_dim, t.hidden_size)
        self.layers = nn.ModuleList(DecoderBlock(t, i, qk_norm=False, scaled=True) for i in range(t.num_layers))
        self.norm = RMSNorm(t.hidden_size, t.rms_norm_eps)
        self.output_proj = nn.Linear(t.hidden_size, config.latent_dim)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        """[T, latent] -> [T, latent]."""
        rotary = RotaryTable(self.config, x.shape[0], x.device, x.dtype, start=state.frames)
        cache = WindowCache(state, self.window, x.shape[0], x.device)
        out: Tensor = self.output_proj(run_blocks(self.layers, self.norm, self.input_proj(x), rotary, cache))
        return out


class ConvNeXtBlock(nn.Module):
    """x + gamma * pwconv2(gelu(pwconv1(norm(depthwise(x)))))."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.dwconv = CausalConv1d(size, size, 7, groups=size)
        self.norm = nn.LayerNorm(size, eps=1e-6)
        self.pwconv1 = nn.Linear(size, 4 * size)
        self.pwconv2 = nn.Linear(4 * size, size)
        self.gamma = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        y = self.norm(self.dwconv(x, state).transpose(1, 2))
        y = self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))
        out: Tensor = x + y.transpose(1, 2)
        return out


class ResidualUnit(nn.Module):
    """x + conv1x1(snake(conv7(snake(x)))), the kernel of 7 dilated."""

    def __init__(self, size: int, dilation: int) -> None:
        super().__init__()
        self.act1, self.act2 = SnakeBeta(size), SnakeBeta(size)
        self.conv1, self.conv2 = CausalConv1d(size, size, 7, dilation), CausalConv1d(size, size, 1)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        out: Tensor = self.conv2(self.act2(self.conv1(self.act1(x), state)), state)
        return out.add_(x)


class VocoderBlock(nn.Module):
    """SnakeBeta, transposed convolution to half the channels at `rate` times the rate, three residual units."""

    def __init__(self, size: int, rate: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [
                SnakeBeta(size),
                CausalConvTranspose1d(size, size // 2, 2 * rate, rate),
                *(ResidualUnit(size // 2, dilation) for dilation in (1, 3, 9)),
            ]
        )

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        activation, *rest = self.block
        x = activation(x)
        for layer in rest:
            x = layer(x, state)
        return x


class CodecDecoder(nn.Module):
    """Keys are those of the codec checkpoint without the prefix `decoder.`. Call `prepare` once after loading."""

    def __init__(self, config: CodecDecoderConfig, samples_per_frame: int) -> None:
        super().__init__()
        self.config, self.samples_per_frame = config, samples_per_frame
        self.quantizer = Quantizer(config)
        self.pre_conv = CausalConv1d(config.codebook_dim, config.latent_dim, 3)
        self.pre_transformer = FrameTransformer(config)
        latent, width = config.latent_dim, config.decoder_dim
        self.upsample = nn.ModuleList(
            nn.ModuleList([CausalConvTranspose1d(latent, latent, ratio, ratio), ConvNeXtBlock(latent)])
            for ratio in config.upsampling_ratios
        )
        last = width >> len(config.upsample_rates)
        self.decoder = nn.ModuleList(
            [
                CausalConv1d(latent, width, 7),
                *(VocoderBlock(width >> i, rate) for i, rate in enumerate(config.upsample_rates)),
                SnakeBeta(last),
                CausalConv1d(last, 1, 7),
            ]
        )
        for name, module in self.named_modules():
            if isinstance(module, Causal):
                module.name = name

    def prepare(self) -> None:
        """Derives what depends on the weights alone."""
        for module in self.modules():
            if isinstance(module, SnakeBeta | Codebook):
                module.prepare()

    def forward(self, codes: Tensor, state: StreamState) -> Tensor:
        """The next frames of a stream: int64 [T, 16] -> fp32 [T * 1920] in [-1, 1]."""
        pieces = [self._step(chunk, state) for chunk in codes.split(CHUNK)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _step(self, codes: Tensor, state: StreamState) -> Tensor:
        x = self.pre_conv(self.quantizer(codes), state)
        x = self.pre_transformer(x[0].T, state).T[None]
        for stage in self.upsample:
            for layer in stage.children():
                x = layer(x, state)
        first, *blocks, activation, last = self.decoder
        x = first(x, state)
        for block in blocks:
            x = block(x, state)
        state.frames += codes.shape[0]
        samples: Tensor = last(activation(x), state)[0, 0]
        return samples.float().clamp(-1, 1)

    def decode_official(self, codes: Tensor) -> Iterator[Tensor]:
        """As the official package: 300 frames at a time, each after 25 frames of context whose audio is dropped.

        Equal to `forward` up to 300 frames, an approximation after that. Yields fp32 samples per chunk."""
        for start in range(0, codes.shape[0], OFFICIAL_CHUNK):
            context = min(start, OFFICIAL_CONTEXT)
            window = codes[start - context : start + OFFICIAL_CHUNK]
            yield self(window, StreamState())[context * self.samples_per_frame :]
