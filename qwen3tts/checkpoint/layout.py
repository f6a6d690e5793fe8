"""Every tensor of a checkpoint: its key and shape, in the order of the released files.

One definition serves the loader's check, the parameter counts and the synthetic generator. Shapes are as torch stores
them: linear [out, in], convolution [out, in, kernel], transposed convolution [in, out, kernel].
"""

from collections.abc import Iterator

from qwen3tts.model.config import (
    CodecConfig,
    CodecDecoderConfig,
    CodecEncoderConfig,
    ModelConfig,
    SpeakerEncoderConfig,
    TalkerConfig,
    TransformerConfig,
)

KeyShape = tuple[str, tuple[int, ...]]


def model_keys(config: ModelConfig) -> list[KeyShape]:
    """(key, shape) of model.safetensors: talker, code predictor and, in Base checkpoints, the speaker encoder."""
    keys = [*_talker(config.talker), *_code_predictor(config.talker)]
    if config.speaker_encoder is not None:
        keys += _speaker_encoder(config.speaker_encoder)
    return keys


def codec_keys(config: CodecConfig) -> list[KeyShape]:
    """(key, shape) of speech_tokenizer/model.safetensors: codec encoder, then codec decoder."""
    return [*_codec_encoder(config.encoder), *_codec_decoder(config.decoder)]


# ------------------------------------------------------------------ parts that several models share


def _conv(prefix: str, out_channels: int, in_channels: int, kernel: int) -> Iterator[KeyShape]:
    yield f"{prefix}.weight", (out_channels, in_channels, kernel)
    yield f"{prefix}.bias", (out_channels,)


def _linear(prefix: str, out_features: int, in_features: int) -> Iterator[KeyShape]:
    yield f"{prefix}.weight", (out_features, in_features)
    yield f"{prefix}.bias", (out_features,)


def _attention(prefix: str, c: TransformerConfig) -> Iterator[KeyShape]:
    q_width, kv_width = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    yield f"{prefix}.q_proj.weight", (q_width, c.hidden_size)
    yield f"{prefix}.k_proj.weight", (kv_width, c.hidden_size)
    yield f"{prefix}.v_proj.weight", (kv_width, c.hidden_size)
    yield f"{prefix}.o_proj.weight", (c.hidden_size, q_width)


def _decoder_layers(prefix: str, c: TransformerConfig, *, qk_norm: bool, layer_scale: bool) -> Iterator[KeyShape]:
    """Pre-norm blocks with SwiGLU: talker and predictor norm q and k, the codec decoder scales its branches."""
    for i in range(c.num_layers):
        p = f"{prefix}.layers.{i}"
        yield from _attention(f"{p}.self_attn", c)
        if qk_norm:
            yield f"{p}.self_attn.q_norm.weight", (c.head_dim,)
            yield f"{p}.self_attn.k_norm.weight", (c.head_dim,)
        yield f"{p}.mlp.gate_proj.weight", (c.intermediate_size, c.hidden_size)
        yield f"{p}.mlp.up_proj.weight", (c.intermediate_size, c.hidden_size)
        yield f"{p}.mlp.down_proj.weight", (c.hidden_size, c.intermediate_size)
        yield f"{p}.input_layernorm.weight", (c.hidden_size,)
        yield f"{p}.post_attention_layernorm.weight", (c.hidden_size,)
        if layer_scale:
            yield f"{p}.self_attn_layer_scale.scale", (c.hidden_size,)
            yield f"{p}.mlp_layer_scale.scale", (c.hidden_size,)


# ------------------------------------------------------------------ model.safetensors


def _talker(t: TalkerConfig) -> Iterator[KeyShape]:
    hidden = t.transformer.hidden_size
    yield from _decoder_layers("talker.model", t.transformer, qk_norm=True, layer_scale=False)
    yield "talker.model.norm.weight", (hidden,)
    yield "talker.model.codec_embedding.weight", (t.vocab_size, hidden)
    yield "talker.model.text_embedding.weight", (t.text_vocab_size, t.text_hidden_size)
    yield from _linear("talker.text_projection.linear_fc1", t.text_hidden_size, t.text_hidden_size)
    yield from _linear("talker.text_projection.linear_fc2", hidden, t.text_hidden_size)
    yield "talker.codec_head.weight", (t.vocab_size, hidden)


def _code_predictor(t: TalkerConfig) -> Iterator[KeyShape]:
    """Its embeddings are as wide as the talker; a projection follows where the predictor is not."""
    p, predictor = "talker.code_predictor", t.code_predictor
    hidden, talker_hidden = predictor.transformer.hidden_size, t.transformer.hidden_size
    yield from _decoder_layers(f"{p}.model", predictor.transformer, qk_norm=True, layer_scale=False)
    yield f"{p}.model.norm.weight", (hidden,)
    for i in range(t.num_code_groups - 1):
        yield f"{p}.model.codec_embedding.{i}.weight", (predictor.vocab_size, talker_hidden)
    for i in range(t.num_code_groups - 1):
        yield f"{p}.lm_head.{i}.weight", (predictor.vocab_size, hidden)
    if hidden != talker_hidden:
        yield from _linear(f"{p}.small_to_mtp_projection", hidden, talker_hidden)


def _speaker_encoder(s: SpeakerEncoderConfig) -> Iterator[KeyShape]:
    """ECAPA-TDNN."""
    p, channels, kernels = "speaker_encoder", s.enc_channels, s.enc_kernel_sizes
    yield from _conv(f"{p}.blocks.0.conv", channels[0], s.mel_dim, kernels[0])
    for b in range(1, len(channels) - 1):
        q, width, slice_width = f"{p}.blocks.{b}", channels[b], channels[b] // s.enc_res2net_scale
        yield from _conv(f"{q}.tdnn1.conv", width, channels[b - 1], 1)
        for j in range(s.enc_res2net_scale - 1):
            yield from _conv(f"{q}.res2net_block.blocks.{j}.conv", slice_width, slice_width, kernels[b])
        yield from _conv(f"{q}.tdnn2.conv", width, width, 1)
        yield from _conv(f"{q}.se_block.conv1", s.enc_se_channels, width, 1)
        yield from _conv(f"{q}.se_block.conv2", width, s.enc_se_channels, 1)
    joined = channels[-1]
    yield from _conv(f"{p}.mfa.conv", joined, joined, kernels[-1])
    yield from _conv(f"{p}.asp.tdnn.conv", s.enc_attention_channels, 3 * joined, 1)
    yield from _conv(f"{p}.asp.conv", joined, s.enc_attention_channels, 1)
    yield from _conv(f"{p}.fc", s.enc_dim, 2 * joined, 1)


# ------------------------------------------------------------------ speech_tokenizer/model.safetensors


def _codec_encoder(e: CodecEncoderConfig) -> Iterator[KeyShape]:
    """SEANet, transformer, stride-2 convolution, split residual quantizer."""
    p, channels, hidden = "encoder.encoder.layers", e.num_filters, e.transformer.hidden_size
    yield from _conv(f"{p}.0.conv", channels, e.audio_channels, e.kernel_size)
    n = 1  # modules of a stage: residual block, activation, strided convolution
    for ratio in reversed(e.upsampling_ratios):
        yield from _conv(f"{p}.{n}.block.1.conv", channels // 2, channels, e.residual_kernel_size)
        yield from _conv(f"{p}.{n}.block.3.conv", channels, channels // 2, 1)
        yield from _conv(f"{p}.{n + 2}.conv", 2 * channels, channels, 2 * ratio)
        channels, n = 2 * channels, n + 3
    yield from _conv(f"{p}.{n + 1}.conv", hidden, channels, e.last_kernel_size)
    for i in range(e.transformer.num_layers):
        yield from _codec_encoder_layer(f"encoder.encoder_transformer.layers.{i}", e.transformer)
    yield "encoder.downsample.conv.weight", (hidden, hidden, 4)
    dim, semantic = e.vector_quantization_hidden_dimension, e.num_semantic_quantizers
    for name, books in (("semantic", semantic), ("acoustic", e.num_quantizers - semantic)):
        p = f"encoder.quantizer.{name}_residual_vector_quantizer"
        for i in range(books):
            yield f"{p}.layers.{i}.codebook.initialized", (1,)
            yield f"{p}.layers.{i}.codebook.cluster_usage", (e.codebook_size,)
            yield f"{p}.layers.{i}.codebook.embed_sum", (e.codebook_size, e.codebook_dim)
        yield f"{p}.input_proj.weight", (dim, hidden, 1)
        yield f"{p}.output_proj.weight", (hidden, dim, 1)


def _codec_encoder_layer(prefix: str, c: TransformerConfig) -> Iterator[KeyShape]:
    yield from _attention(f"{prefix}.self_attn", c)
    yield f"{prefix}.mlp.fc1.weight", (c.intermediate_size, c.hidden_size)
    yield f"{prefix}.mlp.fc2.weight", (c.hidden_size, c.intermediate_size)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{prefix}.{norm}.weight", (c.hidden_size,)
        yield f"{prefix}.{norm}.bias", (c.hidden_size,)
    yield f"{prefix}.self_attn_layer_scale.scale", (c.hidden_size,)
    yield f"{prefix}.mlp_layer_scale.scale", (c.hidden_size,)


def _codec_decoder(d: CodecDecoderConfig) -> Iterator[KeyShape]:
    """Transformer, quantizer, causal convolution, upsampling, vocoder."""
    hidden, latent, dim = d.transformer.hidden_size, d.latent_dim, d.codebook_dim
    p = "decoder.pre_transformer"
    yield from _decoder_layers(p, d.transformer, qk_norm=False, layer_scale=True)
    yield f"{p}.norm.weight", (hidden,)
    yield from _linear(f"{p}.input_proj", hidden, latent)
    yield from _linear(f"{p}.output_proj", latent, hidden)
    for name, books in (("rvq_first", 1), ("rvq_rest", d.num_quantizers - 1)):
        q = f"decoder.quantizer.{name}"
        yield f"{q}.input_proj.weight", (dim // 2, dim, 1)
        yield f"{q}.output_proj.weight", (dim, dim // 2, 1)
        for i in range(books):
            yield f"{q}.vq.layers.{i}._codebook.cluster_usage", (d.codebook_size,)
            yield f"{q}.vq.layers.{i}._codebook.embedding_sum", (d.codebook_size, dim // 2)
    yield from _conv("decoder.pre_conv.conv", latent, dim, 3)
    for i, ratio in enumerate(d.upsampling_ratios):
        yield from _upsampling_stage(f"decoder.upsample.{i}", latent, ratio)
    yield from _vocoder("decoder.decoder", d)


def _upsampling_stage(prefix: str, width: int, ratio: int) -> Iterator[KeyShape]:
    """Transposed convolution (kernel = stride), then a ConvNeXt block."""
    yield from _conv(f"{prefix}.0.conv", width, width, ratio)
    yield f"{prefix}.1.gamma", (width,)
    yield from _conv(f"{prefix}.1.dwconv.conv", width, 1, 7)
    yield f"{prefix}.1.norm.weight", (width,)
    yield f"{prefix}.1.norm.bias", (width,)
    yield from _linear(f"{prefix}.1.pwconv1", 4 * width, width)
    yield from _linear(f"{prefix}.1.pwconv2", width, 4 * width)


def _snake(prefix: str, channels: int) -> Iterator[KeyShape]:
    yield f"{prefix}.alpha", (channels,)
    yield f"{prefix}.beta", (channels,)


def _vocoder(prefix: str, d: CodecDecoderConfig) -> Iterator[KeyShape]:
    width, stages = d.decoder_dim, len(d.upsample_rates)
    yield from _conv(f"{prefix}.0.conv", width, d.latent_dim, 7)
    for i, rate in enumerate(d.upsample_rates):
        block, in_channels, out_channels = f"{prefix}.{i + 1}.block", width >> i, width >> (i + 1)
        yield from _snake(f"{block}.0", in_channels)
        yield f"{block}.1.conv.weight", (in_channels, out_channels, 2 * rate)
        yield f"{block}.1.conv.bias", (out_channels,)
        for unit in (2, 3, 4):  # residual units with dilations 1, 3, 9
            for n, kernel in ((1, 7), (2, 1)):
                yield from _snake(f"{block}.{unit}.act{n}", out_channels)
                yield from _conv(f"{block}.{unit}.conv{n}.conv", out_channels, out_channels, kernel)
    out_channels = width >> stages
    yield from _snake(f"{prefix}.{stages + 1}", out_channels)
    yield from _conv(f"{prefix}.{stages + 2}.conv", 1, out_channels, 7)
