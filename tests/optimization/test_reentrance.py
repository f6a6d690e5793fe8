"""Plans while the model is in use: by streams, by callbacks, and by the passes themselves."""

import gc

import pytest

from qwen3tts import GenerateOptions, Qwen3TTSError
from qwen3tts.errors import OptimizationApplicationError, OptimizationPlanError, OptimizationStateError
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


def test_not_from_a_progress_callback(tts, passes):
    raised = []

    def progress(event):
        try:
            tts.apply_optimization_plan(passes.Quiet())
        except OptimizationStateError as error:
            raised.append(str(error))

    tts.generate("Hi.", tts.voices[0], options=GenerateOptions(max_frames=2), progress=progress)
    assert raised
    assert all("while this thread is speaking" in message for message in raised)


def test_a_text_stream_without_text_is_open(tts, passes):
    stream = tts.open_text_stream(tts.voices[0])
    with pytest.raises(OptimizationStateError, match="Cannot apply a plan while 1 stream is open"):
        tts.apply_optimization_plan(passes.Quiet())
    stream.close()
    tts.apply_optimization_plan(passes.Quiet())
    stream = tts.open_text_stream(tts.voices[0])
    with pytest.raises(OptimizationStateError, match="Cannot restore a plan while 1 stream is open"):
        tts.restore_optimization_plan()
    del stream
    gc.collect()
    tts.restore_optimization_plan()
