"""config.json and speech_tokenizer/config.json are read strictly."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qwen3tts.checkpoint.codec_config import parse_codec_config
from qwen3tts.checkpoint.config import parse_config, read_config
from qwen3tts.checkpoint.json_object import JsonObject, parse_json
from qwen3tts.errors import ConfigError
from qwen3tts.model.config import ModelConfig
from qwen3tts.synthetic.configs import REAL_TEXT_IDS, TYPES, build_configs

MAIN, CODEC = "config.json", "speech_tokenizer/config.json"
Json = dict[str, Any]

# Written for readers or for other code; the model does not need them.
OPTIONAL = {
    "architectures", "transformers_version", "attention_bias", "attention_dropout", "initializer_range", "use_cache",
    "use_sliding_window", "layer_types", "max_window_layers", "position_id_per_seconds",
    "interleaved", "rope_type", "type", "enc_channels", "enc_attention_channels", "enc_se_channels",
    "layer_scale_initial_scale", "semantic_codebook_size", "_frame_rate", "compress", "dilation_growth_rate",
    "num_residual_layers", "pad_mode", "sampling_rate", "trim_right_ratio", "upsample_groups", "use_causal_conv",
    "use_conv_shortcut", "use_streaming",
}  # fmt: skip
OPTIONAL_PATHS = {
    (MAIN, "talker_config.sliding_window"),
    (MAIN, "talker_config.code_predictor_config.sliding_window"),
    (CODEC, "encoder_config.sliding_window"),
    (MAIN, "talker_config.model_type"),
    (MAIN, "talker_config.code_predictor_config.model_type"),
    (MAIN, "talker_config.code_predictor_config.rope_scaling"),
    (CODEC, "encoder_config.model_type"),
    (CODEC, "decoder_config.num_semantic_quantizers"),
    (CODEC, "decoder_config.vector_quantization_hidden_dimension"),
}


def configs(model_type: str = "base", preset: str = "0.6b") -> dict[str, Json]:
    config, codec = build_configs(preset, model_type, REAL_TEXT_IDS, "4.57.2")
    return {MAIN: config, CODEC: codec}


def parse(files: dict[str, Json]) -> ModelConfig:
    return parse_config(*(JsonObject(name, "", files[name]) for name in (MAIN, CODEC)))


def parent(files: dict[str, Json], file: str, path: str) -> tuple[Json, str]:
    *folders, key = path.split(".")
    values = files[file]
    for folder in folders:
        values = values[folder]
    return values, key


def leaves(values: Json, path: str = "") -> Iterator[str]:
    """Dotted paths of all keys, objects included, except the names inside the id tables."""
    for key, value in values.items():
        yield path + key
        if isinstance(value, dict) and key not in ("codec_language_id", "spk_id", "spk_is_dialect"):
            yield from leaves(value, f"{path}{key}.")


ALL_KEYS = [(file, path) for file, values in configs().items() for path in leaves(values)]
REQUIRED = [(f, p) for f, p in ALL_KEYS if p.rsplit(".", 1)[-1] not in OPTIONAL and (f, p) not in OPTIONAL_PATHS]


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("preset", ["small", "0.6b", "1.7b"])
def test_released_layout_is_read(preset: str, model_type: str) -> None:
    config = parse(configs(model_type, preset))
    assert config.model_type == model_type
    assert config.model_size == ("0b6" if preset == "0.6b" else "1b7")
    assert (config.speaker_encoder is not None) == (model_type == "base")
    assert config.talker.codec_eos_id == 2150
    assert config.talker.languages["english"] == 2050
    assert config.codec.samples_per_frame == 1920
    if model_type == "custom_voice":
        assert config.talker.speaker_dialects == {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
        assert config.talker.speakers["ryan"] == 3061


def test_sizes_of_the_real_model() -> None:
    config = parse(configs("base", "1.7b"))
    talker, predictor = config.talker.transformer, config.talker.code_predictor.transformer
    assert (talker.hidden_size, talker.intermediate_size, talker.num_layers) == (2048, 6144, 28)
    assert (talker.num_heads, talker.num_kv_heads, talker.head_dim, talker.rope_theta) == (16, 8, 128, 1e6)
    assert (predictor.hidden_size, predictor.num_layers, predictor.max_positions) == (1024, 5, 65536)
    assert (config.codec.decoder.transformer.hidden_size, config.codec.decoder.sliding_window) == (512, 72)
    assert config.codec.encoder.num_quantizers == 32
    assert config.speaker_encoder is not None
    assert config.speaker_encoder.enc_channels == (512, 512, 512, 512, 1536)  # not in the file: the released values
    assert config.speaker_encoder.enc_dim == 2048


@pytest.mark.parametrize(("file", "path"), REQUIRED)
def test_missing_key_is_named(file: str, path: str) -> None:
    files = configs()
    values, key = parent(files, file, path)
    del values[key]
    with pytest.raises(ConfigError) as error:
        parse(files)
    assert f"{file}: {path} is missing" in str(error.value)


def test_most_keys_are_required() -> None:
    """Guards the list above: a reader that drops requirements would shorten it unseen."""
    assert len(REQUIRED) >= 85
    assert (MAIN, "talker_config.head_dim") in REQUIRED
    assert (CODEC, "decoder_config.codebook_dim") in REQUIRED


@pytest.mark.parametrize(("file", "path"), [key for key in ALL_KEYS if key not in REQUIRED])
def test_optional_key_may_be_absent(file: str, path: str) -> None:
    files = configs()
    values, key = parent(files, file, path)
    del values[key]
    assert parse(files) == parse(configs())


@pytest.mark.parametrize(("file", "path"), REQUIRED)
def test_wrong_type_is_named(file: str, path: str) -> None:
    for wrong in (None, True, "x", -1, 1.5, [], [[]], {"x": 1}):
        files = configs()
        values, key = parent(files, file, path)
        if type(wrong) is type(values[key]) or (key == "rope_theta" and wrong == 1.5):
            continue  # of the right type: ranges are tested below
        values[key] = wrong
        with pytest.raises(ConfigError) as error:
            parse(files)
        assert f"{file}: {path}" in str(error.value)
        assert "expected" in str(error.value)


CONTRADICTIONS: list[tuple[str, str, object, str]] = [
    (MAIN, "talker_config.num_attention_heads", 15, "multiple"),
    (MAIN, "talker_config.num_key_value_heads", 0, "from 1"),
    (MAIN, "talker_config.num_hidden_layers", 10**9, "to 1024"),
    (MAIN, "talker_config.hidden_size", 10**30, "an integer from 1"),
    (MAIN, "talker_config.head_dim", 127, "even"),
    (MAIN, "talker_config.rope_scaling.mrope_section", [24, 20, 19], "adds up to 63"),
    (MAIN, "talker_config.rope_scaling.rope_type", "yarn", "'default'"),
    (MAIN, "talker_config.rope_scaling.type", "linear", "'default'"),
    (MAIN, "talker_config.code_predictor_config.rope_scaling", {"rope_type": "yarn"}, "'default'"),
    (MAIN, "talker_config.hidden_act", "gelu", "'silu'"),
    (MAIN, "talker_config.attention_bias", True, "false"),
    (MAIN, "talker_config.use_sliding_window", True, "false"),
    (MAIN, "talker_config.rms_norm_eps", 0, "above 0"),
    (MAIN, "talker_config.code_predictor_config.use_sliding_window", True, "false"),
    (MAIN, "talker_config.code_predictor_config.layer_types", ["sliding_attention"] * 5, "full_attention"),
    (MAIN, "talker_config.code_predictor_config.num_code_groups", 32, "talker_config.num_code_groups is 16"),
    (MAIN, "talker_config.code_predictor_config.vocab_size", 4096, "codebook_size is 2048"),
    (MAIN, "talker_config.vocab_size", 4096, "codebook_size 2048"),
    (MAIN, "talker_config.vocab_size", 3100, "codebook_size 2048"),
    (MAIN, "talker_config.codec_eos_token_id", 3072, "from 2048 to 3071"),
    (MAIN, "talker_config.codec_eos_token_id", 2047, "from 2048 to 3071"),
    (MAIN, "talker_config.codec_eos_token_id", 2148, "same id as codec_pad_id"),
    (MAIN, "talker_config.codec_language_id.english", 3072, "from 2048 to 3071"),
    (MAIN, "talker_config.codec_language_id.english", "2050", "from 2048 to 3071"),
    (MAIN, "talker_config.codec_language_id.English", 2051, "when case is ignored"),
    (MAIN, "talker_config.spk_id.ryan", 5000, "from 2048 to 3071"),
    (MAIN, "talker_config.spk_id.ryan", [3061, 3062], "from 2048 to 3071"),
    (MAIN, "talker_config.spk_id.newcomer", 3000, "spk_is_dialect.newcomer is missing"),
    (MAIN, "talker_config.spk_id", {}, "names no speaker"),
    (MAIN, "talker_config.spk_is_dialect.ryann", False, "Did you mean 'ryan'?"),
    (MAIN, "talker_config.spk_is_dialect.eric", "sichuan_dialekt", "Did you mean 'sichuan_dialect'?"),
    (MAIN, "talker_config.spk_is_dialect.eric", True, "false or a key of"),
    (MAIN, "tts_pad_token_id", 151936, "from 0 to 151935"),
    (MAIN, "tts_pad_token_id", 151672, "same id as"),
    (MAIN, "tts_model_type", "custom-voice", "Did you mean 'custom_voice'?"),
    (MAIN, "tts_model_type", 3, "'custom_voice' or 'base'"),
    (MAIN, "tts_model_size", "2b", "'0b6' or '1b7'"),
    (MAIN, "model_type", "qwen3", "'qwen3_tts'"),
    (MAIN, "tokenizer_type", "qwen3_tts_tokenizer_25hz", "qwen3_tts_tokenizer_12hz"),
    (CODEC, "model_type", "mimi", "qwen3_tts_tokenizer_12hz"),
    (CODEC, "encoder_valid_num_quantizers", 8, "num_quantizers is 16"),
    (CODEC, "decode_upsample_rate", 1921, "multiply to 1920"),
    (CODEC, "encode_downsample_rate", 960, "1920"),
    (CODEC, "input_sample_rate", 16000, "output_sample_rate is 24000"),
    (CODEC, "decoder_config.num_quantizers", 8, "expected"),
    (CODEC, "decoder_config.upsample_rates", [8, 5, 4], "multiply to 640"),
    (CODEC, "decoder_config.decoder_dim", 1544, "multiple of 16"),
    (CODEC, "decoder_config.codebook_dim", 511, "even"),
    (CODEC, "decoder_config.hidden_act", "gelu", "'silu'"),
    (CODEC, "decoder_config.num_semantic_quantizers", 2, "expected 1"),
    (CODEC, "encoder_config.hidden_act", "silu", "'gelu'"),
    (CODEC, "encoder_config.num_quantizers", 15, "at least 16"),
    (CODEC, "encoder_config.codebook_size", 1024, "codebook_size is 2048"),
    (CODEC, "encoder_config.codebook_dim", 128, "expected the same"),
    (CODEC, "encoder_config.sampling_rate", 16000, "24000"),
    (CODEC, "encoder_config.use_causal_conv", False, "causal"),
    (CODEC, "encoder_config.compress", 4, "expected 2"),
    (CODEC, "encoder_config.num_filters", 63, "even"),
]


@pytest.mark.parametrize(("file", "path", "value", "message"), CONTRADICTIONS)
def test_contradiction_is_refused(file: str, path: str, value: object, message: str) -> None:
    files = configs("custom_voice")
    values, key = parent(files, file, path)
    values[key] = value
    with pytest.raises(ConfigError) as error:
        parse(files)
    if "expected" not in message:
        assert message in str(error.value)
    assert str(error.value).startswith((MAIN, CODEC))


SPEAKER_ENCODER = [
    ("enc_dim", 2048, "hidden_size"),
    ("sample_rate", 16000, "24000"),
    ("enc_channels", [512, 512, 1024], "entries"),
    ("enc_channels", [512, 512, 512, 512, 1024], "1536"),
    ("enc_channels", [512, 256, 512, 512, 1280], "equal multiples"),
    ("enc_res2net_scale", 7, "multiples"),
    ("enc_dilations", [1, 2, 3, 4], "entries"),
    ("mel_dim", 0, "from 1"),
]


@pytest.mark.parametrize(("key", "value", "message"), SPEAKER_ENCODER)
def test_speaker_encoder_contradiction(key: str, value: object, message: str) -> None:
    files = configs("base")
    files[MAIN]["speaker_encoder_config"][key] = value
    with pytest.raises(ConfigError, match=message):
        parse(files)


def test_speaker_encoder_belongs_to_base_only() -> None:
    files = configs("base")
    del files[MAIN]["speaker_encoder_config"]
    with pytest.raises(ConfigError, match=r"config.json: speaker_encoder_config is missing"):
        parse(files)
    files = configs("custom_voice")  # a fine-tuned checkpoint keeps the section without the weights
    files[MAIN]["speaker_encoder_config"] = {"enc_dim": 1}
    assert parse(files) == parse(configs("custom_voice"))


def test_custom_voice_needs_speakers() -> None:
    files = configs("custom_voice")
    files[MAIN]["talker_config"] |= {"spk_id": {}, "spk_is_dialect": {}}
    with pytest.raises(ConfigError, match="needs speakers"):
        parse(files)


def test_spellings_that_are_accepted() -> None:
    plain = parse(configs("custom_voice"))
    files = configs("custom_voice")
    talker = files[MAIN]["talker_config"]
    talker["spk_id"] = {name.upper(): [value] for name, value in talker["spk_id"].items()}
    talker["rope_theta"] = 1e6
    talker["sliding_window"] = 4096  # inert unless use_sliding_window
    files[MAIN]["a_key_of_next_year"] = {"x": [1]}
    files[CODEC]["decoder_config"]["semantic_codebook_size"] = 17
    files[CODEC]["decoder_config"]["vector_quantization_hidden_dimension"] = "unused"
    assert parse(files) == plain


def test_misspelt_key_gets_a_hint() -> None:
    files = configs()
    files[MAIN]["talker_config"]["head_dimm"] = files[MAIN]["talker_config"].pop("head_dim")
    with pytest.raises(ConfigError, match=r"talker_config\.head_dim is missing.*Did you mean 'head_dimm'\?"):
        parse(files)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a": 1, "a": 2}', "'a' is there twice"),
        (b'{"a": {"b": 1, "b": 1}}', "'b' is there twice"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b"[1]", "must be a JSON object, not a list"),
        (b"null", "must be a JSON object, not null"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": ' + b"[" * 200_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'\xef\xbb\xbf{"a": 1}', "not valid JSON"),
    ],
)
def test_damaged_json(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        parse_json(data, "config.json")
    assert str(error.value).startswith("config.json")


def test_huge_or_missing_file(tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=r"config\.json is missing in"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_bytes(b" " * (16 << 20) + b"{}")
    with pytest.raises(ConfigError, match="larger than 16 MB"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_bytes((tiny_checkpoint() / "config.json").read_bytes())
    with pytest.raises(ConfigError, match=r"speech_tokenizer/config\.json is missing"):
        read_config(tmp_path)


def test_number_too_large_for_a_float() -> None:
    files = configs()
    files[MAIN]["talker_config"]["rope_theta"] = 10**400
    with pytest.raises(ConfigError, match="rope_theta"):
        parse(files)
    files[MAIN]["talker_config"]["rope_theta"] = json.loads("1e999")
    with pytest.raises(ConfigError, match="rope_theta"):
        parse(files)


def test_codec_config_alone() -> None:
    codec = copy.deepcopy(configs()[CODEC])
    assert parse_codec_config(JsonObject(CODEC, "", codec)) == parse(configs()).codec


@pytest.mark.parametrize(
    ("file", "path"), [key for key in ALL_KEYS if key[1].endswith("max_position_embeddings")], ids=lambda value: value
)
def test_bound_of_positions(file: str, path: str) -> None:
    files = configs()
    values, key = parent(files, file, path)
    values[key] = 131_072
    parse(files)
    values[key] += 1
    with pytest.raises(ConfigError, match="max_position_embeddings is 131073; expected .* 131072"):
        parse(files)


@pytest.mark.parametrize("table", ["codec_language_id", "spk_id"])
def test_named_ids_are_special_ids_of_their_own(table: str) -> None:
    files = configs("custom_voice")
    talker = files[MAIN]["talker_config"]
    name = next(iter(talker[table]))
    for value, message in (
        (talker["vocab_size"] - 1025, "expected an integer from 2048 to 3071, a special id"),
        (talker["codec_eos_token_id"], "the same id as talker_config.codec_eos_token_id"),
    ):
        talker[table][name] = value
        with pytest.raises(ConfigError, match=f"talker_config.{table}.{name} is {value}.*{message}"):
            parse(files)


def test_null_is_off() -> None:
    files = configs()
    talker = files[MAIN]["talker_config"]
    for section in (talker, talker["code_predictor_config"]):
        section |= {"attention_bias": None, "use_sliding_window": None}
    files[CODEC]["decoder_config"]["attention_bias"] = None
    assert parse(files) == parse(configs())
