"""scripts/decode_sanitize.py on a small model, and what kernels read that nobody has written."""

import contextlib
import random

import decode_sanitize
import pytest
import torch
from decode_checks.drawing import talker_config
from decoder_rows import FIXED_SEED, core_of, draw, request, whole_life

WAVES = (64,)


def test_all_that_the_sanitizer_watches_is_equal(native, monkeypatch, capsys):
    monkeypatch.setattr(decode_sanitize, "PROMPT", 9)
    found = decode_sanitize.sanitize(native, talker_config("tiny-mtp"), decode_sanitize.PARTS, sizes=(1, 4, 5))
    launched = [
        f"{name}, {form}"
        for name in ("bfloat16", "float16", "float32")
        for form in ("1 of 5 rows", "4 of 5 rows", "replayed")
    ]
    assert list(found) == launched  # the persistent kernel is for the released sizes
    assert set(found.values()) == {"equal"}
    assert "persistent code predictor: " in capsys.readouterr().out


def test_a_difference_is_told(native, monkeypatch):
    speak, calls = decode_sanitize.speak, []

    def changed(core, rows, step):
        made = speak(core, rows, step)
        calls.append(len(rows))
        if len(calls) == 2:
            made[0][0, 1] += 1
        return made

    monkeypatch.setattr(decode_sanitize, "speak", changed)
    watched = decode_sanitize.Watched(native, decode_sanitize.thin(talker_config("tiny-mtp")), torch.bfloat16)
    found = dict(watched.launched((1, 2)))
    assert found == {
        "bfloat16, 1 of 2 rows": "row 0: first difference at frame 0, codebook 1", "bfloat16, replayed": "equal",
    }  # fmt: skip


@contextlib.contextmanager
def poison():
    """Inside, what is allocated and not written is NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def row_of(runtime, rng, prompt):
    generator = torch.Generator().manual_seed(rng.randrange(2**40))
    return request(runtime, rng, text_complete=True, max_frames=5, prefill=draw(runtime, generator, prompt))


def lived(native, runtime):
    """Rows beside an idle one and behind free places: the core, and what they spoke."""
    rng, core = random.Random(FIXED_SEED), core_of(native, runtime, kv_positions=300, graphs=False)
    idle, first, *others = (row_of(runtime, rng, prompt) for prompt in (2, 9, 39, 69))
    slots = core.admit([idle])
    made = whole_life(core, others, 2)
    core.release(slots[0])
    return core, made + whole_life(core, [first], 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_that_nobody_wrote_reaches_no_code(native, models, dtype):
    runtime = models(dtype, "plain", str(native.device))
    _, want = lived(native, runtime)
    with poison():
        core, got = lived(native, runtime)
    assert got == want
    tensors = vars(core.state) | {"workspace": core.launches._workspace}
    unwritten = {
        name
        for name, value in tensors.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.isnan().any()
    }
    assert unwritten == {"pool"}  # of which kernels load what was written alone
