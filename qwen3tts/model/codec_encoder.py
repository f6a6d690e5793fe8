"""The codec encoder: 24 kHz samples to codes [frames, 16], one frame per 1920 samples begun.

Mimi's layout: SEANet (convolutions, 960 samples per position, 25 Hz), a causal transformer, a stride-2 convolution
(12.5 Hz), residual vector quantization. Every convolution is causal and pads its own input with zeros up to a multiple
of its stride, so only the last frame of a recording can depend on where the recording ends.

Memory: SEANet runs over PIECE samples at a time, exactly, with the tails of the convolutions carried over; the
transformer sees all positions at once but never holds a mask or a score matrix. Ten minutes of audio (15,000
positions) take about 0.65 GB besides the weights at the released sizes, and some 4 TFLOP.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qwen3tts.errors import AudioError, NumericsError
from qwen3tts.model.causal import Causal, StreamState
from qwen3tts.model.config import CodecEncoderConfig, TransformerConfig
from qwen3tts.model.layers import Angles, Attention, AttentionCache, LayerScale, Linear, RotaryTable, causal_attention

PIECE = 100
"""Positions of 25 Hz per pass of SEANet; the result does not depend on it."""


class StridedConv1d(Causal):
    """Causal convolution, [1, in, T] -> [1, out, ceil(T / stride)].

    Before the first input come (kernel - 1) * dilation + 1 - stride zeros, after the last one zeros up to a multiple of
    `stride`; so a stream may be cut at multiples of `stride` only."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels_in, channels_out, kernel, stride)
        self.stride, self.span = stride, kernel - stride

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        x = F.pad(x, (0, -x.shape[-1] % self.stride))
        out: Tensor = self.conv(self.extend(x, state) if self.span else x)
        return out


class ResidualBlock(nn.Module):
    """x + conv1x1(elu(conv(elu(x)))), half as wide inside."""

    def __init__(self, size: int, kernel: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [nn.ELU(), StridedConv1d(size, size // 2, kernel), nn.ELU(), StridedConv1d(size // 2, size, 1)]
        )

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        y = x
        for layer in self.block:
            y = layer(y, state) if isinstance(layer, StridedConv1d) else layer(y)
        return y.add_(x)


class SEANet(nn.Module):
    """Samples [1, 1, n] -> [1, hidden, ceil(n / hop)]: per ratio a residual block and a convolution of that stride."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        size = config.num_filters
        layers: list[nn.Module] = [StridedConv1d(config.audio_channels, size, config.kernel_size)]
        self.hop = 1
        for ratio in reversed(config.upsampling_ratios):
            layers += [ResidualBlock(size, config.residual_kernel_size), nn.ELU()]
            layers.append(StridedConv1d(size, 2 * size, 2 * ratio, ratio))
            size *= 2
            self.hop *= ratio
        layers += [nn.ELU(), StridedConv1d(size, config.transformer.hidden_size, config.last_kernel_size)]
        self.layers = nn.ModuleList(layers)
        for name, module in self.named_modules():
            if isinstance(module, Causal):
                module.name = name

    def forward(self, samples: Tensor) -> Tensor:
        state = StreamState()
        pieces = []
        for x in samples.split(PIECE * self.hop, -1):
            for layer in self.layers:
                x = layer(x) if isinstance(layer, nn.ELU) else layer(x, state)
            pieces.append(x)
        return torch.cat(pieces, -1)


class WholeSequence:
    """AttentionCache of one recording seen at once: each position attends to itself and all before it."""

    def __init__(self, positions: int, device: torch.device) -> None:
        self.positions = torch.arange(positions, device=device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See layers.AttentionCache. The window of 250 in the released config is inert in the official package."""
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        return causal_attention(q, k, v)[0].transpose(0, 1).flatten(1)


class MLP(nn.Module):
    """fc2(gelu(fc1(x))), exact GELU."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.fc1 = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class EncoderBlock(nn.Module):
    """x + scale * attention(norm(x)), then x + scale * mlp(norm(x)), with LayerNorm."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer, qk_norm=False)
        self.mlp = MLP(config)
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, x: Tensor, angles: Angles, cache: AttentionCache) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), angles, cache))
        out: Tensor = x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))
        return out


class Transformer(nn.Module):
    """The blocks over 25 Hz positions: [T, hidden] -> [T, hidden]. No final norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(EncoderBlock(config, i) for i in range(config.num_layers))

    def forward(self, x: Tensor) -> Tensor:
        cache = WholeSequence(x.shape[0], x.device)
        angles = RotaryTable(self.config, x.shape[0], x.device, x.dtype).at(cache.positions)
        for block in self.layers:
            x = block(x, angles, cache)
        return x


class Downsample(nn.Module):
    """Stride-2 convolution, [T, hidden] -> [ceil(T / 2), hidden]. Its padding repeats the edge instead of zeros."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(hidden, hidden, 4, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.pad(x.T[None], (2, x.shape[0] % 2), mode="replicate"))
        return out[0].T


class Codebook(nn.Module):
    """Entry = embed_sum / max(cluster_usage, 1e-5)."""

    entries: Tensor

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.empty(size))
        self.embed_sum = nn.Parameter(torch.empty(size, width))

    def prepare(self) -> None:
        """Call once after loading."""
        self.entries = self.embed_sum / self.cluster_usage.clamp(min=1e-5)[:, None]

    def nearest(self, x: Tensor) -> Tensor:
        """[T, width] -> int64 [T]: the nearest entry by Euclidean distance in fp32, the lowest index among equals.

        cdist, as in the official package: other ways to the same distance round otherwise and move near ties."""
        return torch.cdist(x[None].float(), self.entries[None].float())[0].argmin(-1)


class _Book(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.codebook = Codebook(size, width)


class ResidualQuantizer(nn.Module):
    """Each codebook quantizes what those before it left over. Has the first `books` of the file's codebooks, and not
    its output_proj, which serves decoding only."""

    def __init__(self, config: CodecEncoderConfig, books: int) -> None:
        super().__init__()
        width = config.vector_quantization_hidden_dimension
        self.layers = nn.ModuleList(_Book(config.codebook_size, config.codebook_dim) for _ in range(books))
        self.input_proj = nn.Conv1d(config.transformer.hidden_size, width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] -> int64 [T, books]."""
        residual = self.input_proj(x.T[None])[0].T
        codes = []
        for book in (module for module in self.layers.modules() if isinstance(module, Codebook)):
            codes.append(book.nearest(residual))
            residual = residual - book.entries[codes[-1]]
        return torch.stack(codes, -1)


class SplitQuantizer(nn.Module):
    """The semantic codebook and the acoustic ones, both from the same embeddings."""

    def __init__(self, config: CodecEncoderConfig, quantizers: int) -> None:
        super().__init__()
        semantic = config.num_semantic_quantizers
        self.semantic_residual_vector_quantizer = ResidualQuantizer(config, semantic)
        self.acoustic_residual_vector_quantizer = ResidualQuantizer(config, quantizers - semantic)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] -> int64 [T, quantizers]."""
        parts = (self.semantic_residual_vector_quantizer(x), self.acoustic_residual_vector_quantizer(x))
        return torch.cat(parts, -1)


class CodecEncoder(nn.Module):
    """Keys are those of the codec checkpoint without the prefix `encoder.`. Call `prepare` once after loading.

    quantizers: how many codebooks to use; the released files have 32, the model speaks the first 16."""

    def __init__(self, config: CodecEncoderConfig, quantizers: int) -> None:
        super().__init__()
        self.config = config
        self.encoder = SEANet(config)
        self.encoder_transformer = Transformer(config.transformer)
        self.downsample = Downsample(config.transformer.hidden_size)
        self.quantizer = SplitQuantizer(config, quantizers)

    def prepare(self) -> None:
        """Derives what depends on the weights alone."""
        for module in self.modules():
            if isinstance(module, Codebook):
                module.prepare()

    def forward(self, samples: Tensor) -> Tensor:
        """One recording, float [n] at 24 kHz -> int64 [ceil(n / 1920), quantizers]. Raises AudioError if n is 0,
        NumericsError if samples are not finite or so large that values overflow.

        Recordings are encoded one by one: in a padded batch the last frame of the shorter ones would change."""
        if samples.ndim != 1 or not samples.shape[0]:
            raise AudioError(f"the codec encoder got samples of shape {list(samples.shape)}, expected [n] with n >= 1")
        x = self.encoder(samples[None, None])
        x = self.downsample(self.encoder_transformer(x[0].T))
        if not x.isfinite().all():
            raise NumericsError("The codec encoder overflows on these samples; expected finite ones with full scale 1.")
        codes: Tensor = self.quantizer(x)
        return codes
