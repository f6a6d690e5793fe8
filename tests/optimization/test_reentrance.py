"""Passes that use the model that they are being applied to."""

import pytest

from qwen3tts import Qwen3TTSError
from qwen3tts.errors import OptimizationApplicationError, OptimizationPlanError
from qwen3tts.optimization import PassResult


@pytest.mark.parametrize("method", ["validate", "apply", "restore"])
@pytest.mark.parametrize("what", ["a stream", "a row"])
def test_a_pass_leaves_no_stream_open(tts, passes, method, what):
    opened = []

    def open_one(self, model, *others):
        with_row = tts.stream("Hello.", tts.voices[0])
        opened.append(with_row)
        if what == "a row":  # its number is known to nobody
            with_row._player._slot = None
            tts.turns.players.discard(with_row._player)
            with_row._closed = True
        return {"validate": None, "apply": PassResult(model), "restore": model}[method]

    before = passes.observe(tts)
    opening = type("Opening", (passes.Quiet,), {method: open_one})()
    expected = OptimizationPlanError if method == "validate" else OptimizationApplicationError
    if method == "restore":
        tts.apply_optimization_plan([opening, passes.Repack()])
    with pytest.raises(expected, match="open|given back|changed"):
        tts.restore_optimization_plan() if method == "restore" else tts.apply_optimization_plan([opening])
    assert tts.optimization_result() is None
    assert list(opened[0]) == []
    assert tts.engine.runtime.frames.open_slots() == frozenset()
    assert vars(passes.observe(tts)) == vars(before)


@pytest.mark.parametrize("method", ["validate", "apply", "restore"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda tts, item: tts.apply_optimization_plan(item), "Cannot apply a plan while another one is being"),
        (lambda tts, item: tts.restore_optimization_plan(), "Cannot restore a plan while another one is being"),
        (lambda tts, item: tts.close(), r"close\(\) was called by an optimization pass"),
    ],
)
def test_a_pass_does_not_use_the_model_it_works_on(tts, passes, method, call, message):
    told = []

    def act(self, model, *others):
        try:
            call(tts, passes.Repack())
        except Qwen3TTSError as error:
            told.append(error)
        return {"validate": None, "apply": PassResult(model), "restore": model}[method]

    tts.apply_optimization_plan(type("Acting", (passes.Quiet,), {method: act})())
    tts.restore_optimization_plan()
    assert len(told) == 1
    with pytest.raises(type(told[0]), match=message):
        raise told[0]
