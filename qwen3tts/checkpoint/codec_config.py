"""speech_tokenizer/config.json -> `CodecConfig`, as strict as `qwen3tts.checkpoint.config`.

Two keys of decoder_config look like sizes but the model never uses them, so they are not read: semantic_codebook_size
and vector_quantization_hidden_dimension.
"""

import math

from qwen3tts.checkpoint.json_object import MAX_COUNT, MAX_POSITIONS, JsonObject
from qwen3tts.model.config import CodecConfig, CodecDecoderConfig, CodecEncoderConfig, TransformerConfig

ENCODER_DOWNSAMPLE = 2
"""The encoder's last convolution halves the frame rate once more."""


def parse_codec_config(config: JsonObject) -> CodecConfig:
    """Raises ConfigError that names the file and the dotted key of what is missing, wrong or contradictory."""
    config.text("model_type", ("qwen3_tts_tokenizer_12hz",))
    rate, rate_in = config.integer("output_sample_rate"), config.integer("input_sample_rate")
    if rate != rate_in:
        raise config.error("input_sample_rate", f"is {rate_in}, but output_sample_rate is {rate}")
    decoder_section, encoder_section = config.section("decoder_config"), config.section("encoder_config")
    decoder, encoder = _decoder(decoder_section), _encoder(encoder_section)

    samples = config.integer("decode_upsample_rate")
    made = math.prod(decoder.upsample_rates + decoder.upsampling_ratios)
    if samples != made:
        raise config.error(
            "decode_upsample_rate",
            f"is {samples}, but decoder_config.upsample_rates and upsampling_ratios multiply to {made}",
        )
    samples_in = config.integer("encode_downsample_rate")
    taken = math.prod(encoder.upsampling_ratios) * ENCODER_DOWNSAMPLE
    if samples_in != taken:
        raise config.error(
            "encode_downsample_rate",
            f"is {samples_in}, but encoder_config.upsampling_ratios give {taken}: {ENCODER_DOWNSAMPLE} x their product",
        )
    if samples_in != samples:
        raise config.error("encode_downsample_rate", f"is {samples_in}, but decode_upsample_rate is {samples}")

    books = config.integer("encoder_valid_num_quantizers", maximum=MAX_COUNT)
    if books != decoder.num_quantizers:
        raise config.error(
            "encoder_valid_num_quantizers", f"is {books}, but decoder_config.num_quantizers is {decoder.num_quantizers}"
        )
    if encoder.num_quantizers < books:
        raise encoder_section.error(
            "num_quantizers", f"is {encoder.num_quantizers}; expected at least {books}, encoder_valid_num_quantizers"
        )
    if encoder.codebook_size != decoder.codebook_size:
        raise encoder_section.error(
            "codebook_size", f"is {encoder.codebook_size}, but decoder_config.codebook_size is {decoder.codebook_size}"
        )
    encoder_section.require("sampling_rate", rate, "the codec's sample rate")
    return CodecConfig(decoder=decoder, encoder=encoder, sample_rate=rate, samples_per_frame=samples)


def _transformer(section: JsonObject, activation: str, norm_eps: str) -> TransformerConfig:
    heads = section.integer("num_attention_heads", maximum=MAX_COUNT)
    kv_heads = section.integer("num_key_value_heads", maximum=MAX_COUNT)
    head_dim = section.integer("head_dim")
    if heads % kv_heads:
        raise section.error("num_attention_heads", f"is {heads}, no multiple of num_key_value_heads {kv_heads}")
    if head_dim % 2:
        raise section.error("head_dim", f"is {head_dim}; expected an even number, as RoPE turns pairs")
    section.text("hidden_act", (activation,))
    section.require("attention_bias", False, "biases in the attention are not part of this model")
    if "rope_scaling" in section and section.raw("rope_scaling", "null") is not None:
        section.section("rope_scaling").text("rope_type", ("default",))
    return TransformerConfig(
        hidden_size=section.integer("hidden_size"),
        intermediate_size=section.integer("intermediate_size"),
        num_layers=section.integer("num_hidden_layers", maximum=MAX_COUNT),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=section.number(norm_eps, above=True, maximum=1.0),
        rope_theta=section.number("rope_theta", above=True),
        max_positions=section.integer("max_position_embeddings", maximum=MAX_POSITIONS),
    )


def _decoder(section: JsonObject) -> CodecDecoderConfig:
    rates = section.integers("upsample_rates", maximum=MAX_COUNT)
    width, codebook_dim = section.integer("decoder_dim"), section.integer("codebook_dim")
    if width % (1 << len(rates)):
        raise section.error(
            "decoder_dim",
            f"is {width}; expected a multiple of {1 << len(rates)}, as each of the "
            f"{len(rates)} vocoder blocks halves it",
        )
    if codebook_dim % 2:
        raise section.error("codebook_dim", f"is {codebook_dim}; expected an even number: an entry has half of it")
    section.require("num_semantic_quantizers", 1, "the first codebook has a quantizer of its own")
    return CodecDecoderConfig(
        transformer=_transformer(section, "silu", "rms_norm_eps"),
        sliding_window=section.integer("sliding_window"),
        latent_dim=section.integer("latent_dim"),
        decoder_dim=width,
        codebook_dim=codebook_dim,
        codebook_size=section.integer("codebook_size"),
        num_quantizers=section.integer("num_quantizers", minimum=2, maximum=MAX_COUNT),
        upsample_rates=rates,
        upsampling_ratios=section.integers("upsampling_ratios", maximum=MAX_COUNT),
    )


_FIXED_ENCODER = {
    "compress": (2, "residual blocks are half as wide"),
    "num_residual_layers": (1, "one residual block per stage"),
    "use_causal_conv": (True, "the convolutions are causal"),
    "use_conv_shortcut": (False, "the residual path is the identity"),
    "pad_mode": ("constant", "the convolutions pad with zeros"),
}
"""Keys of encoder_config that the model has one value for."""


def _encoder(section: JsonObject) -> CodecEncoderConfig:
    for key, (wanted, reason) in _FIXED_ENCODER.items():
        section.require(key, wanted, reason)
    filters = section.integer("num_filters")
    if filters % 2:
        raise section.error("num_filters", f"is {filters}; expected an even number, as residual blocks have half")
    books = section.integer("num_quantizers", minimum=2, maximum=MAX_COUNT)
    semantic = section.integer("num_semantic_quantizers", maximum=MAX_COUNT)
    if semantic != 1:
        raise section.error("num_semantic_quantizers", f"is {semantic}; expected 1: the first codebook alone")
    codebook_dim = section.integer("codebook_dim")
    hidden_dim = section.integer("vector_quantization_hidden_dimension")
    if codebook_dim != hidden_dim:
        raise section.error(
            "vector_quantization_hidden_dimension",
            f"is {hidden_dim}, but codebook_dim is {codebook_dim}; expected the same",
        )
    return CodecEncoderConfig(
        transformer=_transformer(section, "gelu", "norm_eps"),
        audio_channels=section.integer("audio_channels", maximum=1),
        num_filters=filters,
        kernel_size=section.integer("kernel_size", maximum=MAX_COUNT),
        residual_kernel_size=section.integer("residual_kernel_size", maximum=MAX_COUNT),
        last_kernel_size=section.integer("last_kernel_size", maximum=MAX_COUNT),
        upsampling_ratios=section.integers("upsampling_ratios", maximum=MAX_COUNT),
        codebook_size=section.integer("codebook_size"),
        codebook_dim=codebook_dim,
        vector_quantization_hidden_dimension=hidden_dim,
        num_quantizers=books,
        num_semantic_quantizers=semantic,
    )
