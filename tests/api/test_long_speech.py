"""Long texts: parts with one voice and seed, joined without clicks, cut parts reported."""

import numpy as np
import pytest

from qwen3tts import GenerateOptions
from qwen3tts.errors import OptionError, TextError
from qwen3tts.runtime.long_speech import join

TEXT = "Hello world and to the user. The voice speaks on and on! Is it the end? " * 3


def test_parts_have_their_own_draws_and_the_same_seed(ending_tts):
    options = GenerateOptions(seed=11)
    spoken = ending_tts.generate_long(TEXT, "ryan", options=options, max_tokens=20)
    assert len(spoken.parts) > 3
    assert "".join("".join(spoken.texts).split()) == "".join(TEXT.split())
    assert {part.seed for part in spoken.parts} == {11}
    first = ending_tts.generate(spoken.texts[0], "ryan", options=options)
    assert np.array_equal(spoken.parts[0].codes, first.codes), "part 0 is the text spoken alone"
    same = [i for i, text in enumerate(spoken.texts) if text == spoken.texts[0]]
    assert len(same) > 1
    assert not np.array_equal(spoken.parts[same[1]].codes, first.codes), "other parts draw other numbers"
    assert spoken.samples.shape == (sum(part.frames for part in spoken.parts) * 1920,)
    assert spoken.complete is all(part.complete for part in spoken.parts)


def test_parts_that_hit_their_limit_are_reported(tts, tmp_path):
    spoken = tts.generate_long(TEXT, "ryan", options=GenerateOptions(max_frames=3), max_tokens=60)
    assert spoken.cut == tuple(range(len(spoken.parts)))
    assert not spoken.complete
    assert "cut" in repr(spoken)
    spoken.save(tmp_path / "long.wav")
    assert (tmp_path / "long.wav").stat().st_size == 44 + 2 * len(spoken.samples)


def test_joints_fade_and_the_outer_ends_do_not(seed):
    rng = np.random.default_rng(seed)
    parts = [rng.uniform(0.5, 1, size).astype(np.float32) for size in (1000, 300, 2400)]
    whole = join(parts, 24000)
    assert whole.shape == (3700,)
    for joint in (1000, 1300):
        assert abs(whole[joint - 1]) < 0.01
        assert abs(whole[joint]) < 0.01
    assert whole[0] == parts[0][0]
    assert whole[-1] == parts[2][-1]
    assert np.array_equal(whole[1600:3400], parts[2][300:2100]), "away from joints nothing changes"
    assert np.array_equal(join(parts[:1], 24000), parts[0])
    assert join([], 24000).size == 0


def test_characters_that_nobody_sees_are_no_parts(tts):
    options = GenerateOptions(seed=3, max_frames=2)
    text = "Hello world.\n" + "\u200b" * 30 + "\nThe user.\n" + "\u200b \ufeff" * 20
    spoken = tts.generate_long(text, "ryan", options=options, max_tokens=12)
    assert [part.strip("\u200b\ufeff \n") for part in spoken.texts] == ["Hello world.", "The user."]
    assert spoken.samples.shape == (4 * 1920,)
    with pytest.raises(TextError, match="invisible"):
        tts.generate_long("\u200b" * 30 + "\n\ufeff", "ryan", options=options, max_tokens=12)


def test_bad_input(tts):
    with pytest.raises(OptionError, match="max_tokens"):
        tts.generate_long(TEXT, "ryan", max_tokens=3)
    with pytest.raises(TextError):
        tts.generate_long("  ", "ryan")
    options = GenerateOptions(rng="torch", max_frames=2)
    with pytest.raises(OptionError, match=r"has \d+ parts, .* use rng='philox', or a larger max_tokens"):
        tts.generate_long(TEXT, "ryan", options=options, max_tokens=40)
    assert len(tts.generate_long("Hello.", "ryan", options=options, max_tokens=np.int64(20)).parts) == 1
