"""apply, result, manifest and restore on a loaded model: the contract, point by point."""

import gc
import threading
import weakref
from dataclasses import dataclass

import pytest

import qwen3tts
from qwen3tts import GenerateOptions, Qwen3TTSError, RuntimeOptions, Voice
from qwen3tts.errors import (
    OptimizationApplicationError,
    OptimizationCompatibilityError,
    OptimizationError,
    OptimizationPlanError,
    OptimizationStateError,
    OptionError,
)
from qwen3tts.optimization import Capabilities, Evidence, Gain, OptimizationPass, PassContext, PassRegistry, PassResult


def test_a_plan_is_applied_recorded_and_taken_back(tts, passes):
    before = passes.observe(tts)
    runtime = tts.engine.runtime
    assert tts.optimization_result() is None
    assert tts.optimization_manifest("inference") is None
    assert tts.optimization_manifest() == {}

    result = tts.apply_optimization_plan([passes.Repack(), passes.Quiet(label="two")])
    assert tts.optimization_result() is result
    assert [applied.pass_id for applied in result.applied] == ["test.repack", "test.quiet"]
    speech = tts.generate("Hello, world.", tts.voices[0], options=GenerateOptions(max_frames=4, seed=5))
    assert speech.codes.tobytes() == before.codes

    manifest = tts.optimization_manifest("inference")
    assert tts.optimization_manifest() == {"inference": manifest}
    assert manifest["format_version"] == 3
    assert manifest["context"]["device"] == "cpu"
    first, second = manifest["passes"]
    assert (first["pass"], first["version"], first["kind"]) == ("test.repack", 1, "kernels")
    assert first["configuration"] == {"scale": 1.0}
    assert first["metadata"]["bytes"] > 0
    assert first["metadata"]["evidence"] is None
    assert first["runtime_status"]["outcome"] == "applied"
    assert second["configuration"] == {"label": "two"}

    assert tts.restore_optimization_plan() is runtime
    assert tts.engine.runtime is runtime
    assert vars(passes.observe(tts)) == vars(before)
    assert tts.optimization_result() is None


def test_many_times_without_growth(tts, passes):
    before = passes.observe(tts)
    for _ in range(20):
        tts.apply_optimization_plan(passes.Repack())
        tts.restore_optimization_plan()
    result = tts.apply_optimization_plan(passes.Repack())
    gone = [weakref.ref(result), weakref.ref(result.applied[0].result)]
    tts.restore_optimization_plan()
    del result
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert vars(passes.observe(tts)) == vars(before)


def test_forms_of_a_plan(tts, passes):
    registry = PassRegistry()
    registry.register("quiet")(passes.Quiet)
    registry.register("repack")(passes.Repack)
    for plan, expected in [
        ("quiet", ["quiet"]),
        (("quiet", {"label": "x"}), ["x"]),
        (passes.Quiet(label="y"), ["y"]),
        ([("quiet", {"label": "z"}), "repack"], ["z", None]),
        ((entry for entry in ("repack", passes.Quiet())), [None, "quiet"]),
    ]:
        result = tts.apply_optimization_plan(plan, registry=registry)
        assert [getattr(applied.item, "label", None) for applied in result.applied] == expected
        tts.restore_optimization_plan()


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        ([], OptimizationPlanError, "empty"),
        ((), OptimizationPlanError, "empty"),
        (None, OptimizationPlanError, "NoneType"),
        (3, OptimizationPlanError, "int"),
        ({"quiet": {}}, OptimizationPlanError, "dict"),
        (["quiet", 3], OptimizationPlanError, "contains a int"),
        (["quiet", "quiet"], OptimizationPlanError, "twice"),
        ("quite", OptimizationPlanError, "Did you mean 'quiet'"),
        ("", OptimizationPlanError, "There is no optimization pass ''"),
        (("quiet", {"lable": "x"}), OptionError, "Did you mean 'label'"),
        (("quiet", {3: "x"}), OptimizationPlanError, "no string"),
        (["quiet"] * 65, OptimizationPlanError, "more than 64"),
    ],
)
def test_plans_that_cannot_be_read(tts, passes, plan, error, message):
    registry = PassRegistry()
    registry.register("quiet")(passes.Quiet)
    with pytest.raises(error, match=message) as caught:
        tts.apply_optimization_plan(plan, registry=registry)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, Qwen3TTSError)
    assert tts.optimization_result() is None


def test_a_class_in_place_of_an_object(tts, passes):
    with pytest.raises(OptimizationPlanError, match=r"Quiet is a class.*Quiet\(\)"):
        tts.apply_optimization_plan([passes.Quiet])


def test_modes_and_contexts(tts, passes):
    quiet = passes.Quiet()
    with pytest.raises(ValueError, match="'infrence'.*Did you mean 'inference'"):
        tts.apply_optimization_plan(quiet, mode="infrence")
    with pytest.raises(ValueError, match="made for 'training'"):
        tts.apply_optimization_plan(quiet, mode="inference", context=PassContext(mode="training"))
    with pytest.raises(OptimizationCompatibilityError, match="the mode 'training'"):
        tts.apply_optimization_plan(quiet, mode="training")
    with pytest.raises(OptimizationCompatibilityError, match="device='cuda', but the model has 'cpu'"):
        tts.apply_optimization_plan(quiet, context=PassContext(device="cuda"))
    with pytest.raises(ValueError, match="expected a PassContext"):
        tts.apply_optimization_plan(quiet, context={"mode": "inference"})
    with pytest.raises(OptimizationPlanError, match="registry is a int; expected a PassRegistry"):
        tts.apply_optimization_plan(quiet, registry=5)
    for name, value in [
        ("streaming", 1),
        ("distributed", None),
        ("persist_result", "no"),
        ("device", 0),
        ("dtype", ""),
    ]:
        with pytest.raises(OptimizationPlanError, match=f"PassContext.{name} is {value!r}"):
            PassContext(**{name: value})
    for call in (tts.optimization_manifest, tts.optimization_result, tts.restore_optimization_plan):
        with pytest.raises(ValueError, match="expected one of"):
            call("speaking")
    with pytest.raises(OptimizationCompatibilityError, match="distributed"):
        tts.apply_optimization_plan(_with(quiet, distributed_safe=False), context=PassContext(distributed=True))
    tts.apply_optimization_plan(quiet, context=PassContext(streaming=False))
    assert tts.optimization_manifest("inference")["context"]["streaming"] is False
    tts.restore_optimization_plan()


def _with(item, **capabilities):
    kind = type("Changed", (type(item),), {"capabilities": Capabilities(**capabilities)})
    return kind()


@pytest.mark.parametrize(
    ("capabilities", "message"),
    [
        ({"devices": ("cuda",)}, "the device 'cpu'.*cuda"),
        ({"dtypes": ("bfloat16",)}, "the dtype 'float32'.*bfloat16"),
        ({"streaming_safe": False}, "streaming"),
        ({"changes_parameter_names": True}, "parameter names"),
    ],
)
def test_capabilities_are_compared_before_any_change(tts, passes, capabilities, message):
    before = passes.observe(tts)
    with pytest.raises(OptimizationCompatibilityError, match=message):
        tts.apply_optimization_plan([passes.Repack(), _with(passes.Quiet(), **capabilities)])
    assert vars(passes.observe(tts)) == vars(before)


def test_an_architecture_offers_kinds(tts, passes):
    kind = type("Lora", (passes.Quiet,), {"optimization_kind": "lora", "requires_architecture_support": True})
    with pytest.raises(OptimizationCompatibilityError, match="offers no 'lora'"):
        tts.apply_optimization_plan(kind())


def test_an_optional_pass_is_left_off_with_the_reason(tts, passes):
    class Optional(passes.Quiet):
        pass_id = "test.optional"
        optional = True
        capabilities = Capabilities(devices=("cuda",))

        def apply(self, model, context):
            raise AssertionError("applied where it does not work")

        def restore(self, model, state, context):
            raise AssertionError("restored without having been applied")

    result = tts.apply_optimization_plan([Optional(), passes.Repack()])
    assert [applied.applicable for applied in result.applied] == [False, True]
    entry = tts.optimization_manifest("inference")["passes"][0]
    assert entry["runtime_status"]["outcome"] == "not-applicable"
    assert "the device 'cpu'" in entry["runtime_status"]["reason"]
    assert entry["metadata"] == {"evidence": None, "evidence_reason": "not applicable"}
    tts.restore_optimization_plan()


def test_one_plan_at_a_time(tts, passes):
    with pytest.raises(OptimizationStateError, match="no active optimization plan") as none:
        tts.restore_optimization_plan()
    assert isinstance(none.value, RuntimeError)
    tts.apply_optimization_plan(passes.Quiet())
    for mode in ("inference", "training"):
        with pytest.raises(RuntimeError, match="already active"):
            tts.apply_optimization_plan(passes.Repack(), mode=mode)
    assert [applied.pass_id for applied in tts.optimization_result().applied] == ["test.quiet"]
    tts.restore_optimization_plan()
    with pytest.raises(RuntimeError, match="no active"):
        tts.restore_optimization_plan("inference")


def test_irreversible_passes_stay(tiny_checkpoint, passes):
    class Forever(passes.Quiet):
        pass_id = "test.forever"
        capabilities = Capabilities(reversible=False)

    with qwen3tts.load(tiny_checkpoint(), backend="cpu") as own:
        own.apply_optimization_plan([passes.Repack(), Forever()])
        with pytest.raises(OptimizationStateError, match=r"test\.forever@1 cannot be undone"):
            own.restore_optimization_plan()
        assert own.optimization_result() is not None
        own.generate("Hi.", own.voices[0], options=GenerateOptions(max_frames=1))
        own.close()
        with pytest.raises(Qwen3TTSError, match="closed"):
            own.apply_optimization_plan(passes.Quiet())


def test_an_irreversible_pass_is_undone_when_a_later_one_fails(tts, passes):
    class Forever(passes.Quiet):
        pass_id = "test.forever"
        capabilities = Capabilities(reversible=False)
        restore = OptimizationPass.restore

        def apply(self, model, context):
            model.talker.model.norm.forward = lambda x: x * 0
            model.talker.codec_head.weight.data.zero_()
            return PassResult(model)

    class Last(passes.Quiet):
        def apply(self, model, context):
            raise RuntimeError("no")

    before = passes.observe(tts)
    with pytest.raises(OptimizationApplicationError) as caught:
        tts.apply_optimization_plan([Forever(), Last()])
    assert caught.value.rollback_errors == ()
    assert vars(passes.observe(tts)) == vars(before)


def test_a_pass_that_gives_back_something_else(tts, passes):
    """The same bytes in another Parameter are not what was there before."""

    class Other(passes.Quiet):
        def apply(self, model, context):
            return PassResult(model)

        def restore(self, model, state, context):
            layer = model.talker.model.layers[0].mlp.down_proj
            layer.weight = type(layer.weight)(layer.weight.clone(), requires_grad=False)
            return model

    before = passes.observe(tts)
    tts.apply_optimization_plan([Other()])
    with pytest.raises(OptimizationApplicationError, match="not given back"):
        tts.restore_optimization_plan()
    assert tts.optimization_result() is None
    assert vars(passes.observe(tts)) == vars(before)


def test_evidence_is_recorded_in_the_metadata(tts, passes):
    result = tts.apply_optimization_plan([passes.Repack(), passes.Quiet()])
    applied = result.applied[0]
    evidence = applied.item.check(result.model, applied.result.state, result.context)
    tts.record_optimization_evidence("test.repack", evidence)
    tts.record_optimization_evidence("test.quiet", "it has no check")
    first, second = tts.optimization_manifest("inference")["passes"]
    assert first["metadata"]["evidence"] == evidence.to_json()
    assert second["metadata"] == {"evidence": None, "evidence_reason": "it has no check"}
    nan = Evidence("x", "y", float("nan"), 1.0, True, 0.1, Gain("1.8 times", "a card", "abc"))
    assert not nan.passed
    tts.record_optimization_evidence("test.repack", nan)
    assert tts.optimization_manifest("inference")["passes"][0]["metadata"]["evidence"]["error"] is None
    with pytest.raises(OptimizationError, match=r"no pass 'test\.none'"):
        tts.record_optimization_evidence("test.none", evidence)
    tts.restore_optimization_plan()
    with pytest.raises(OptimizationStateError, match="no active"):
        tts.record_optimization_evidence("test.repack", evidence)


# ------------------------------------------------------------ while something is spoken


def test_open_streams_are_counted(tts, passes):
    voice = tts.voices[0]
    first, second = tts.stream("Hello.", voice), tts.stream("And more.", voice)
    next(first)
    with pytest.raises(OptimizationStateError, match="while 2 streams are open"):
        tts.apply_optimization_plan(passes.Quiet())
    first.close()
    with pytest.raises(RuntimeError, match="while 1 stream is open"):
        tts.apply_optimization_plan(passes.Quiet())
    del second
    gc.collect()
    tts.apply_optimization_plan(passes.Quiet())
    with tts.stream("Hello.", voice, options=GenerateOptions(max_frames=3)) as third:
        next(third)
        with pytest.raises(OptimizationStateError, match="Cannot restore a plan while 1 stream is open"):
            tts.restore_optimization_plan()
        assert tts.optimization_result() is not None
        list(third)
    tts.restore_optimization_plan()


def test_a_text_stream_with_undecoded_frames_is_open(tts, passes):
    """Its row may have ended already, but its codec state belongs to the codec of now."""
    stream = tts.open_text_stream(tts.voices[0], options=GenerateOptions(max_frames=2))
    stream.push_text("Hello, world. This is enough text to begin with, and then some more.")
    next(stream)
    with pytest.raises(OptimizationStateError, match="1 stream is open"):
        tts.apply_optimization_plan(passes.Quiet())
    stream.close()
    tts.apply_optimization_plan(passes.Quiet())
    tts.restore_optimization_plan()


def test_plans_wait_for_calls_in_other_threads(tts, passes):
    options = GenerateOptions(max_frames=12, seed=9)
    expected = tts.generate("Hello, world.", tts.voices[0], options=options).codes.tobytes()
    speaking, results = threading.Event(), []

    def speak():
        speech = tts.generate("Hello, world.", tts.voices[0], options=options, progress=lambda event: speaking.set())
        results.append(speech.codes.tobytes())

    thread = threading.Thread(target=speak)
    thread.start()
    assert speaking.wait(60)
    tts.apply_optimization_plan(passes.Repack())
    thread.join(60)
    tts.restore_optimization_plan()
    assert results == [expected]


def test_codec_states_of_recordings_do_not_outlive_the_codec(tiny_checkpoint, passes, seed):
    """The state kept after a voice's recording belongs to the codec that made it."""
    import numpy as np

    rng = np.random.default_rng(seed)

    @dataclass(frozen=True, kw_only=True)
    class Counting(OptimizationPass):
        pass_id = "test.counting"
        optimization_kind = "codec-kernels"

        def apply(self, model, context):
            old = model.codec

            class Codec(type(old)):
                opened = 0

                def open(self):
                    type(self).opened += 1
                    return super().open()

            model.codec = Codec(old.model, old.device)
            return PassResult(model, old)

        def restore(self, model, state, context):
            model.codec = state
            return model

    with qwen3tts.load(tiny_checkpoint("base", seed=2), backend="cpu", runtime=RuntimeOptions(max_streams=2)) as base:
        hidden = base.config.talker.transformer.hidden_size
        codes = rng.integers(0, 32, (6, 16)).astype(np.int16)
        voice = Voice(
            kind="icl",
            x_vector=rng.standard_normal(hidden).astype(np.float32),
            ref_codes=codes,
            ref_text="Hello there.",
        )
        options = GenerateOptions(max_frames=3, seed=1)
        before = base.generate("Hi.", voice, options=options)
        base.apply_optimization_plan(Counting())
        during = base.generate("Hi.", voice, options=options)
        assert base.engine.runtime.codec.opened > 0
        base.restore_optimization_plan()
        after = base.generate("Hi.", voice, options=options)
    for other in (during, after):
        assert other.codes.tobytes() == before.codes.tobytes()
        assert other.samples.tobytes() == before.samples.tobytes()
