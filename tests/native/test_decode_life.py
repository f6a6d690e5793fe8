"""scripts/decode_life.py on a small model: all equal, and differences are seen."""

from dataclasses import replace

import decode_life
import pytest
from decode_checks.drawing import talker_config
from decode_checks.lives import Lived, differences_alone

WAVES = (64,)
SLOTS, GROUPS = 5, 3


@pytest.fixture
def checks(native):
    config = talker_config("tiny-mtp")
    thin = replace(config.transformer, num_layers=1)
    inner = replace(config.code_predictor, transformer=replace(config.code_predictor.transformer, num_layers=1))
    config = replace(config, transformer=thin, code_predictor=inner, num_code_groups=GROUPS)
    return decode_life.Checks(native, config, SLOTS, longest=9, prompt=12)


def test_bits(checks):
    found = checks.bits(3)
    assert set(found.values()) == {"equal"}, found
    assert len(found) >= 8


def test_lives_and_what_a_difference_looks_like(checks):
    found = checks.lives(60)
    assert found["equal"], found
    assert found["pages_left"] == 0
    assert "length" in found["ends"]


def test_one_hash(checks):
    found = checks.hash(15, 5)
    assert [len(entry["hashes"]) for entry in found] == [1, 1, 1]
    assert sum(entry["replays"] for entry in found) >= 15


def test_long_rows_and_what_a_wrong_position_looks_like(checks, monkeypatch):
    found = checks.long(3, 80)
    assert found["equal"], found
    assert 0 < found["talker_rms"] < 1e-5
    plain = decode_life.plain_logits

    def elsewhere(talker, padding, rows, codes, kept):
        (row,) = rows
        plain(talker, padding, [replace(row, prefill=row.prefill[1:])], codes, kept)

    monkeypatch.setattr(decode_life, "plain_logits", elsewhere)
    found = checks.long(3, 80)
    assert found["replayed"] == found["beside others"] == "equal"
    assert not found["equal"], found


def test_a_row_that_is_not_as_alone_is_told(checks):
    core = checks.core(2, graphs=False)
    rng = decode_life.random.Random(5)
    rows = [Lived(checks.row(rng, 4)) for _ in range(2)]
    for row, codes in zip(rows, decode_life.speak(core, [row.request for row in rows], 4), strict=True):
        row.codes, row.end = codes.tolist(), "length"
    assert differences_alone(core, rows, 1, 4) == []
    rows[1].codes[2][1] += 1
    (problem,) = differences_alone(core, rows, 2, 4)
    assert problem.endswith("length: frame 2")
    core.close()
