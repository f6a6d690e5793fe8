"""config.json and speech_tokenizer/config.json -> `ModelConfig`, strictly.

Every size and id the model needs must be in the files: the defaults in the official config classes are left over from
other models and wrong for the released ones. Keys that are not needed may be absent; where one is present and says that
the model would compute something else than this package does, the checkpoint is refused.
"""

from pathlib import Path

from qwen3tts.checkpoint.codec_config import parse_codec_config
from qwen3tts.checkpoint.json_object import MAX_COUNT, MAX_POSITIONS, JsonObject, read_json
from qwen3tts.errors import ConfigError, nearest
from qwen3tts.model.config import (
    CodecConfig,
    CodePredictorConfig,
    ModelConfig,
    SpeakerEncoderConfig,
    TalkerConfig,
    TransformerConfig,
)

CONFIG_FILE = "config.json"
CODEC_CONFIG_FILE = "speech_tokenizer/config.json"
MODEL_TYPES = ("custom_voice", "base", "voice_design")
MODEL_SIZES = ("0b6", "1b7")

SPECIAL_ROWS = 1024
"""The talker's last 1024 ids are no codes: the sampler excludes them all but eos."""

RELEASED_SPEAKER_ENCODER = {
    "mel_dim": 128,
    "enc_channels": [512, 512, 512, 512, 1536],
    "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_attention_channels": 128,
    "enc_res2net_scale": 8,
    "enc_se_channels": 128,
}
"""The released config.json leave these out and say only enc_dim and sample_rate."""


def read_config(folder: Path) -> ModelConfig:
    """Reads both config files of a checkpoint folder.

    Raises ConfigError that names the file and the dotted key of what is missing, wrong or contradictory.
    """
    return parse_config(
        read_json(folder / CONFIG_FILE, CONFIG_FILE), read_json(folder / CODEC_CONFIG_FILE, CODEC_CONFIG_FILE)
    )


def parse_config(config: JsonObject, codec_config: JsonObject) -> ModelConfig:
    """Like `read_config`, from the parsed files."""
    config.text("model_type", ("qwen3_tts",))
    model_type = config.text("tts_model_type", MODEL_TYPES)
    model_size = config.text("tts_model_size", MODEL_SIZES)
    config.text("tokenizer_type", ("qwen3_tts_tokenizer_12hz",))
    codec = parse_codec_config(codec_config)
    section = config.section("talker_config")
    talker = _talker(section, codec)
    _check_codebooks(section, talker, codec)
    if model_type == "custom_voice" and not talker.speakers:
        raise section.error("spk_id", "is empty, but tts_model_type is 'custom_voice', which needs speakers")
    speaker_encoder = None
    if model_type == "base":
        speaker_encoder = _speaker_encoder(config.section("speaker_encoder_config"), talker, codec)
    ids = {
        key: config.integer(key, 0, talker.text_vocab_size - 1)
        for key in (
            "im_start_token_id",
            "im_end_token_id",
            "assistant_token_id",
            "tts_bos_token_id",
            "tts_eos_token_id",
            "tts_pad_token_id",
        )
    }
    _check_distinct(config, ids)
    return ModelConfig(
        model_type=model_type,
        model_size=model_size,
        talker=talker,
        codec=codec,
        speaker_encoder=speaker_encoder,
        im_start_id=ids["im_start_token_id"],
        im_end_id=ids["im_end_token_id"],
        assistant_id=ids["assistant_token_id"],
        tts_bos_id=ids["tts_bos_token_id"],
        tts_eos_id=ids["tts_eos_token_id"],
        tts_pad_id=ids["tts_pad_token_id"],
    )


def _check_distinct(section: JsonObject, ids: dict[str, int]) -> None:
    seen: dict[int, str] = {}
    for key, value in ids.items():
        if value in seen:
            raise section.error(key, f"is {value}, the same id as {seen[value]}; expected ids that differ")
        seen[value] = key


def _transformer(section: JsonObject) -> TransformerConfig:
    """Sizes of the talker or the code predictor, which are built alike."""
    heads = section.integer("num_attention_heads", maximum=MAX_COUNT)
    kv_heads = section.integer("num_key_value_heads", maximum=MAX_COUNT)
    head_dim = section.integer("head_dim")
    if heads % kv_heads:
        raise section.error("num_attention_heads", f"is {heads}, no multiple of num_key_value_heads {kv_heads}")
    if head_dim % 2:
        raise section.error("head_dim", f"is {head_dim}; expected an even number, as RoPE turns pairs")
    section.text("hidden_act", ("silu",))
    section.require("attention_bias", False, "biases in the attention are not part of this model")
    _refuse_sliding_window(section)
    return TransformerConfig(
        hidden_size=section.integer("hidden_size"),
        intermediate_size=section.integer("intermediate_size"),
        num_layers=section.integer("num_hidden_layers", maximum=MAX_COUNT),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=section.number("rms_norm_eps", above=True, maximum=1.0),
        rope_theta=section.number("rope_theta", above=True),
        max_positions=section.integer("max_position_embeddings", maximum=MAX_POSITIONS),
    )


def _refuse_sliding_window(section: JsonObject) -> None:
    """A window size alone is inert; it acts through use_sliding_window or layer_types."""
    reason = "this model attends to all positions"
    section.require("use_sliding_window", False, reason)
    if "layer_types" in section:
        value = section.raw("layer_types", "a list")
        if not isinstance(value, list) or any(item != "full_attention" for item in value):
            raise section.wrong("layer_types", f'a list of "full_attention": {reason}')


def _check_rope(section: JsonObject) -> None:
    """Only plain RoPE is computed: rope_type (or its old name, type) must be "default" where it is given."""
    for key in ("rope_type", "type"):
        if key in section:
            section.text(key, ("default",))


def _talker(section: JsonObject, codec: CodecConfig) -> TalkerConfig:
    transformer = _transformer(section)
    rope = section.section("rope_scaling")
    _check_rope(rope)
    sections = rope.integers("mrope_section", minimum=0)
    if sum(sections) != transformer.head_dim // 2:
        raise rope.error(
            "mrope_section",
            f"adds up to {sum(sections)}; expected {transformer.head_dim // 2}, half of talker_config.head_dim",
        )
    size = codec.decoder.codebook_size
    vocab_size = section.integer("vocab_size", minimum=SPECIAL_ROWS + 1)
    if vocab_size != size + SPECIAL_ROWS:
        raise section.error(
            "vocab_size",
            f"is {vocab_size}; expected {size + SPECIAL_ROWS}: {CODEC_CONFIG_FILE}: decoder_config."
            f"codebook_size {size} and {SPECIAL_ROWS} special ids",
        )
    groups = section.integer("num_code_groups", minimum=2, maximum=MAX_COUNT)
    ids = {
        key: section.integer(key, vocab_size - SPECIAL_ROWS, vocab_size - 1)
        for key in (
            "codec_pad_id",
            "codec_bos_id",
            "codec_eos_token_id",
            "codec_think_id",
            "codec_nothink_id",
            "codec_think_bos_id",
            "codec_think_eos_id",
        )
    }
    _check_distinct(section, ids)
    languages = _named_ids(section.section("codec_language_id"), vocab_size, ids)
    speakers = _named_ids(section.section("spk_id"), vocab_size, ids)
    return TalkerConfig(
        transformer=transformer,
        code_predictor=_code_predictor(section.section("code_predictor_config"), groups),
        vocab_size=vocab_size,
        text_vocab_size=section.integer("text_vocab_size"),
        text_hidden_size=section.integer("text_hidden_size"),
        num_code_groups=groups,
        codec_pad_id=ids["codec_pad_id"],
        codec_bos_id=ids["codec_bos_id"],
        codec_eos_id=ids["codec_eos_token_id"],
        codec_think_id=ids["codec_think_id"],
        codec_nothink_id=ids["codec_nothink_id"],
        codec_think_bos_id=ids["codec_think_bos_id"],
        codec_think_eos_id=ids["codec_think_eos_id"],
        languages=languages,
        speakers=speakers,
        speaker_dialects=_dialects(section.section("spk_is_dialect"), speakers, languages),
    )


def _code_predictor(section: JsonObject, groups: int) -> CodePredictorConfig:
    if "rope_scaling" in section and section.raw("rope_scaling", "null") is not None:
        _check_rope(section.section("rope_scaling"))
    own_groups = section.integer("num_code_groups", maximum=MAX_COUNT)
    if own_groups != groups:
        raise section.error("num_code_groups", f"is {own_groups}, but talker_config.num_code_groups is {groups}")
    return CodePredictorConfig(transformer=_transformer(section), vocab_size=section.integer("vocab_size"))


def _named_ids(section: JsonObject, vocab_size: int, control_ids: dict[str, int]) -> dict[str, int]:
    """Lower-case name -> id; an id may also be written as a list of one, as some conversions do."""
    result: dict[str, int] = {}
    lowest = vocab_size - SPECIAL_ROWS
    expected = f"an integer from {lowest} to {vocab_size - 1}, a special id of the talker's vocabulary"
    taken = {value: key for key, value in control_ids.items()}
    for name in section:
        value = section.raw(name, expected)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if type(value) is not int or not lowest <= value < vocab_size:
            raise section.wrong(name, expected)
        if value in taken:
            raise section.error(name, f"is {value}, the same id as talker_config.{taken[value]}")
        if name.lower() in result:
            raise section.error(name, "is there twice when case is ignored")
        result[name.lower()] = value
    return result


def _dialects(section: JsonObject, speakers: dict[str, int], languages: dict[str, int]) -> dict[str, str]:
    """Speakers with a dialect -> key of `languages`. Each speaker has an entry: false or a language."""
    result: dict[str, str] = {}
    listed = set()
    expected = "false or a key of talker_config.codec_language_id"
    for name in section:
        speaker, value = name.lower(), section.raw(name, expected)
        if speaker not in speakers:
            raise section.error(name, f"names no speaker of talker_config.spk_id.{nearest(speaker, speakers)}")
        listed.add(speaker)
        if value is False:
            continue
        if not isinstance(value, str) or value.lower() not in languages:
            raise section.wrong(name, f"{expected}.{nearest(value, languages)}")
        result[speaker] = value.lower()
    for speaker in speakers:
        if speaker not in listed:
            raise section.error(speaker, f"is missing; expected {expected}, as for every speaker of spk_id")
    return result


def _check_codebooks(section: JsonObject, talker: TalkerConfig, codec: CodecConfig) -> None:
    """The talker, the predictor and the codec must speak of the same codes."""
    size, books = codec.decoder.codebook_size, codec.decoder.num_quantizers
    where = f"{CODEC_CONFIG_FILE}: decoder_config"
    predictor = section.section("code_predictor_config")
    if talker.num_code_groups != books:
        raise section.error("num_code_groups", f"is {talker.num_code_groups}, but {where}.num_quantizers is {books}")
    if talker.code_predictor.vocab_size != size:
        got = talker.code_predictor.vocab_size
        raise predictor.error("vocab_size", f"is {got}, but {where}.codebook_size is {size}")


def _speaker_encoder(section: JsonObject, talker: TalkerConfig, codec: CodecConfig) -> SpeakerEncoderConfig:
    """Of Base checkpoints only; see RELEASED_SPEAKER_ENCODER for what may be left out."""
    enc_dim, rate = section.integer("enc_dim"), section.integer("sample_rate")
    if enc_dim != talker.transformer.hidden_size:
        raise section.error(
            "enc_dim",
            f"is {enc_dim}; expected talker_config.hidden_size "
            f"{talker.transformer.hidden_size}, as the x-vector is a row of the prompt",
        )
    if rate != codec.sample_rate:
        raise section.error("sample_rate", f"is {rate}, but the codec's sample rate is {codec.sample_rate}")
    written = {key: section.raw(key, "") for key in RELEASED_SPEAKER_ENCODER if key in section}
    full = JsonObject(section.label, section.path, RELEASED_SPEAKER_ENCODER | written)
    channels = full.integers("enc_channels")
    kernels = full.integers("enc_kernel_sizes", maximum=MAX_COUNT)
    dilations = full.integers("enc_dilations", maximum=MAX_COUNT)
    scale = full.integer("enc_res2net_scale", minimum=2, maximum=MAX_COUNT)
    if len(channels) < 3 or not len(channels) == len(kernels) == len(dilations):
        raise ConfigError(
            f"{full.name('enc_channels')}, enc_kernel_sizes and enc_dilations have {len(channels)}, "
            f"{len(kernels)} and {len(dilations)} entries; expected equal numbers, at least 3"
        )
    if channels[0] % scale or len(set(channels[:-1])) != 1:
        raise full.wrong("enc_channels", f"equal multiples of enc_res2net_scale {scale}, but for the last")
    if channels[-1] != sum(channels[1:-1]):
        raise full.wrong("enc_channels", f"a last entry of {sum(channels[1:-1])}, the sum of those it joins")
    return SpeakerEncoderConfig(
        enc_dim=enc_dim,
        sample_rate=rate,
        mel_dim=full.integer("mel_dim"),
        enc_channels=channels,
        enc_kernel_sizes=kernels,
        enc_dilations=dilations,
        enc_attention_channels=full.integer("enc_attention_channels"),
        enc_res2net_scale=scale,
        enc_se_channels=full.integer("enc_se_channels"),
    )
