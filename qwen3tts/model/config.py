"""Sizes and ids of a model, as plain frozen dataclasses. `qwen3tts.checkpoint` reads them from config.json.

Nothing here has a default: the released values are in the checkpoints, and a wrong guess would be a silent error.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class TransformerConfig:
    """A stack of pre-norm decoder blocks (talker, code predictor, codec)."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_positions: int


@dataclass(frozen=True)
class CodePredictorConfig:
    """The small transformer that makes codebooks 1..15 of a frame."""

    transformer: TransformerConfig
    vocab_size: int


@dataclass(frozen=True)
class TalkerConfig:
    """The large transformer: one position per frame, codebook 0 out."""

    transformer: TransformerConfig
    code_predictor: CodePredictorConfig
    vocab_size: int
    text_vocab_size: int
    text_hidden_size: int
    num_code_groups: int
    codec_pad_id: int
    codec_bos_id: int
    codec_eos_id: int
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    languages: dict[str, int]
    """lower-case name -> id; names that contain "dialect" are reached through speakers only"""
    speakers: dict[str, int]
    """lower-case preset name -> id; empty for base and voice_design"""
    speaker_dialects: dict[str, str]
    """preset name -> key of `languages`, for the presets that have a dialect"""


@dataclass(frozen=True)
class CodecDecoderConfig:
    """Codes -> waveform."""

    transformer: TransformerConfig
    sliding_window: int
    latent_dim: int
    decoder_dim: int
    codebook_dim: int
    """width after the quantizer's output projection; an entry has half of it"""
    codebook_size: int
    num_quantizers: int
    upsample_rates: tuple[int, ...]
    """of the vocoder blocks, kernel = 2 * rate"""
    upsampling_ratios: tuple[int, ...]
    """of the two stages before them, kernel = ratio"""


@dataclass(frozen=True)
class CodecEncoderConfig:
    """Waveform -> codes."""

    transformer: TransformerConfig
    audio_channels: int
    num_filters: int
    kernel_size: int
    residual_kernel_size: int
    last_kernel_size: int
    upsampling_ratios: tuple[int, ...]
    codebook_size: int
    codebook_dim: int
    vector_quantization_hidden_dimension: int
    num_quantizers: int
    num_semantic_quantizers: int


@dataclass(frozen=True)
class CodecConfig:
    """speech_tokenizer/config.json."""

    decoder: CodecDecoderConfig
    encoder: CodecEncoderConfig
    sample_rate: int
    samples_per_frame: int


@dataclass(frozen=True)
class SpeakerEncoderConfig:
    """ECAPA-TDNN; only Base checkpoints have one."""

    enc_dim: int
    sample_rate: int
    mel_dim: int
    enc_channels: tuple[int, ...]
    enc_kernel_sizes: tuple[int, ...]
    enc_dilations: tuple[int, ...]
    enc_attention_channels: int
    enc_res2net_scale: int
    enc_se_channels: int


@dataclass(frozen=True)
class ModelConfig:
    """A whole checkpoint."""

    model_type: str
    """"custom_voice", "base" or "voice_design" """
    model_size: str
    """tts_model_size as written: "0b6" or "1b7" """
    talker: TalkerConfig
    codec: CodecConfig
    speaker_encoder: SpeakerEncoderConfig | None
    im_start_id: int
    im_end_id: int
    assistant_id: int
    tts_bos_id: int
    tts_eos_id: int
    tts_pad_id: int
