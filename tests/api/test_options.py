"""Options: defaults, what wins over what, and every wrong value refused with its name."""

import pickle

import pytest

from qwen3tts import GenerateOptions, OptionError, RuntimeOptions, StreamOptions

BAD = [
    ("do_sample", 1), ("do_sample", "yes"), ("subtalker_dosample", None),
    ("top_k", -1), ("top_k", 1.5), ("top_k", True), ("subtalker_top_k", "50"),
    ("top_p", 0.0), ("top_p", 1.01), ("top_p", float("nan")), ("subtalker_top_p", -0.1),
    ("temperature", 0), ("temperature", -1.0), ("temperature", float("inf")),
    ("temperature", 1e-38), ("temperature", 1e39), ("temperature", 10**400),
    ("top_p", 1e-9), ("subtalker_temperature", float("nan")),
    ("repetition_penalty", 0.0), ("repetition_penalty", "1.05"),
    ("seed", -1), ("seed", 2**64), ("seed", 1.0), ("seed", True),
    ("max_frames", 0), ("max_frames", -3), ("max_frames", 2.5),
    ("text_mode", "Whole"), ("text_mode", ""), ("text_lookahead_tokens", 0), ("rng", "numpy"),
    ("codec_chunking", "fast"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_values_are_refused_by_name(name, value):
    with pytest.raises(OptionError, match=f"^{name} is .*; expected "):
        GenerateOptions(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("max_streams", 0), ("max_positions", 3), ("kv_bytes", 0), ("kv_bytes", 1.5)]
)
def test_bad_runtime_values(name, value):
    with pytest.raises(OptionError, match=f"^{name} is "):
        RuntimeOptions(**{name: value})


@pytest.mark.parametrize(("sizes", "place", "value"), [((0,), 0, 0), ((1, 2, -3), 2, -3), ((4, 2.5, 0), 1, 2.5)])
def test_a_wrong_chunk_is_named_by_its_place(sizes, place, value):
    with pytest.raises(OptionError, match=rf"^chunk_frames\[{place}\] is {value}; expected a whole number from 1 up"):
        StreamOptions(chunk_frames=sizes)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(OptionError, match="'temprature' does not exist. Did you mean 'temperature'"):
        GenerateOptions(temprature=0.5)
    with pytest.raises(OptionError, match="'topk'"):
        GenerateOptions().replace(topk=3)


def test_defaults():
    o = GenerateOptions()
    assert (o.do_sample, o.top_k, o.top_p, o.temperature, o.repetition_penalty) == (True, 50, 1.0, 0.9, 1.05)
    assert (o.subtalker_dosample, o.subtalker_top_k, o.subtalker_top_p, o.subtalker_temperature) == (True, 50, 1.0, 0.9)
    assert (o.seed, o.max_frames, o.passed) == (0, None, frozenset())


def test_the_caller_wins_over_the_checkpoint_over_the_default():
    checkpoint = {"top_k": 20, "temperature": 0.5, "max_new_tokens": 100}
    merged = GenerateOptions(temperature=0.9).over(checkpoint)
    assert (merged.top_k, merged.temperature, merged.top_p) == (20, 0.9, 1.0), (
        "0.9 was passed, though it is the default"
    )
    assert GenerateOptions().over(checkpoint).temperature == 0.5
    replaced = GenerateOptions(seed=3).replace(top_p=0.9)
    assert replaced.passed == {"seed", "top_p"}
    assert replaced.over(checkpoint).top_k == 20


def test_options_pickle_with_what_was_passed():
    options = GenerateOptions(top_k=7, seed=None)
    again = pickle.loads(pickle.dumps(options))
    assert again == options
    assert again.passed == {"top_k", "seed"}
    assert pickle.loads(pickle.dumps(RuntimeOptions(max_streams=3))) == RuntimeOptions(max_streams=3)


def test_lookahead_needs_streamed_text():
    with pytest.raises(OptionError, match="needs text_mode='streamed'"):
        GenerateOptions(text_mode="whole", text_lookahead_tokens=4)
