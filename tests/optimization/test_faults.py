"""A pass that fails at each of its steps in turn. After each the model is what it was, to the byte, and speaks so."""

import pickle
from dataclasses import dataclass

import pytest
import torch

from qwen3tts.errors import (
    BackendError,
    OptimizationApplicationError,
    OptimizationCompatibilityError,
    OptimizationError,
    OptimizationPlanError,
)
from qwen3tts.optimization import OptimizationPass, PassResult
from qwen3tts.optimization.contents import checksums


class Bang(Exception):
    """What a faulty pass raises."""


@dataclass(kw_only=True)
class Faulty(OptimizationPass):
    """Fails at `step`, having done as much damage as it can before."""

    pass_id = "test.faulty"
    optimization_kind = "kernels"
    step: str

    def manifest_configuration(self):
        if self.step == "declaration":
            raise Bang("declaration")
        return {"step": {"no JSON": {1}}[self.step] if self.step == "no JSON" else self.step}

    def validate(self, model, context):
        if self.step == "validate":
            raise Bang("validate")
        if self.step == "validate: backend":
            raise BackendError("there is no such module")
        if self.step == "validate: another declaration":
            self.step = "something else"
        if self.step == "validate: changes":
            _damage(model)
        if self.step == "validate: interrupt":
            raise KeyboardInterrupt

    def apply(self, model, context):
        if self.step == "apply: before":
            raise Bang("apply")
        if self.step == "apply: another declaration":
            self.step = "yet another"
        if self.step == "apply: no result":
            return None
        if self.step == "apply: no model":
            return PassResult(None)
        if self.step == "apply: metadata":
            return PassResult(model, metadata={"figure": float("nan")})
        if self.step == "apply: keys":
            model.talker.extra = torch.nn.Linear(2, 2)
            return PassResult(model)
        if self.step in ("apply: after", "apply: interrupt"):
            _damage(model)
            raise (Bang if self.step == "apply: after" else KeyboardInterrupt)("apply")
        return PassResult(model)

    def runtime_manifest_status(self, result):
        if self.step == "manifest":
            raise Bang("manifest")
        return {"status": {1}} if self.step == "manifest: no JSON" else {}

    def restore(self, model, state, context):
        if self.step.startswith("restore"):
            _damage(model)
            if self.step == "restore: another model":
                return object()
            raise (KeyboardInterrupt if self.step == "restore: interrupt" else Bang)("restore")
        return model


def _damage(model):
    """Weights written behind torch's back, a module, a parameter, parts and attributes replaced and removed."""
    model.talker.model.norm.weight.data.mul_(3)
    model.talker.codec_head.weight.data = torch.zeros(1)
    model.talker.model.layers[0] = torch.nn.Identity()
    del model.talker.code_predictor.lm_head[3]
    model.codec.model.decoder[0].conv.bias = torch.nn.Parameter(torch.zeros(1))
    model.talker.forward = lambda *arguments: None
    model.frames.picker = None
    model.frames.admit = None
    model.codec.model.pre_transformer.layers[0].register_forward_hook(lambda *arguments: torch.zeros(1))
    model.talker.rotary.cos = None
    model.codec = None
    model.marker = 1


BEFORE_APPLY = {
    "declaration": OptimizationPlanError,
    "no JSON": OptimizationPlanError,
    "validate": OptimizationApplicationError,
    "validate: backend": OptimizationCompatibilityError,
    "validate: another declaration": OptimizationPlanError,
    "validate: changes": OptimizationPlanError,
    "validate: interrupt": KeyboardInterrupt,
}
IN_APPLY = [
    "apply: before", "apply: after", "apply: another declaration", "apply: no result", "apply: no model",
    "apply: metadata", "apply: keys", "manifest", "manifest: no JSON",
]  # fmt: skip


@pytest.mark.parametrize("step", BEFORE_APPLY)
@pytest.mark.parametrize("place", ["first", "last"])
def test_before_the_first_change(tts, passes, step, place):
    before = passes.observe(tts)

    class Watched(passes.Repack):
        def apply(self, model, context):
            raise AssertionError("applied before every pass was validated")

    plan = [Watched(), Faulty(step=step)]
    with pytest.raises(BEFORE_APPLY[step]):
        tts.apply_optimization_plan(plan if place == "last" else plan[::-1])
    assert tts.optimization_result() is None
    assert vars(passes.observe(tts)) == vars(before)


@pytest.mark.parametrize("step", IN_APPLY)
@pytest.mark.parametrize("place", ["first", "last"])
def test_while_it_is_applied(tts, passes, step, place):
    before = passes.observe(tts)
    plan = [passes.Repack(), Faulty(step=step)]
    with pytest.raises(OptimizationApplicationError) as caught:
        tts.apply_optimization_plan(plan if place == "last" else plan[::-1])
    assert caught.value.pass_id == "test.faulty"
    assert isinstance(caught.value.cause, Bang | OptimizationError)
    assert caught.value.__cause__ is caught.value.cause
    assert caught.value.rollback_errors == ()
    assert tts.optimization_result() is None
    assert vars(passes.observe(tts)) == vars(before)
    tts.apply_optimization_plan(passes.Repack())
    tts.restore_optimization_plan()
    assert vars(passes.observe(tts)) == vars(before)


def test_an_interrupt_is_undone_and_passed_on(tts, passes):
    before = passes.observe(tts)
    with pytest.raises(KeyboardInterrupt):
        tts.apply_optimization_plan([passes.Repack(), Faulty(step="apply: interrupt")])
    assert tts.optimization_result() is None
    assert vars(passes.observe(tts)) == vars(before)


def test_errors_while_undoing_are_reported(tts, passes):
    class Late(Faulty):
        pass_id = "test.late"

    before = passes.observe(tts)
    with pytest.raises(
        OptimizationApplicationError, match=r"undone \(Bang: restore\); the model was put back"
    ) as caught:
        tts.apply_optimization_plan([passes.Repack(), Faulty(step="restore"), Late(step="apply: after")])
    assert caught.value.pass_id == "test.late"
    assert [type(error) for error in caught.value.rollback_errors] == [Bang]
    assert caught.value.intact
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.intact) == (str(caught.value), True)
    assert vars(passes.observe(tts)) == vars(before)


def test_undoing_goes_from_the_last_to_the_first(tts, passes):
    order = []

    def make(name):
        class Noting(passes.Quiet):
            pass_id = f"test.{name}"

            def restore(self, model, state, context):
                order.append(name)
                return model

        return Noting()

    plan = [make("a"), make("b"), make("c")]
    with pytest.raises(OptimizationApplicationError):
        tts.apply_optimization_plan([*plan, Faulty(step="apply: before")])
    assert order == ["c", "b", "a"]
    tts.apply_optimization_plan(plan)
    tts.restore_optimization_plan()
    assert order == ["c", "b", "a"] * 2


@pytest.mark.parametrize("step", ["restore", "restore: another model"])
@pytest.mark.parametrize("place", ["first", "last"])
def test_while_it_is_restored(tts, passes, step, place):
    before = passes.observe(tts)
    plan = [passes.Repack(), Faulty(step=step)]
    tts.apply_optimization_plan(plan if place == "last" else plan[::-1])
    with pytest.raises(OptimizationApplicationError):
        tts.restore_optimization_plan()
    assert tts.optimization_result() is None
    assert vars(passes.observe(tts)) == vars(before)


def test_an_interrupted_restore_is_completed(tts, passes):
    before = passes.observe(tts)
    tts.apply_optimization_plan([passes.Repack(), Faulty(step="restore: interrupt")])
    with pytest.raises(KeyboardInterrupt):
        tts.restore_optimization_plan()
    assert tts.optimization_result() is None
    assert vars(passes.observe(tts)) == vars(before)


def test_a_status_that_fails_later(tts, passes):
    """The manifest cannot be written then, but the plan stays and can be taken back."""
    before = passes.observe(tts)
    faulty = Faulty(step="none")
    tts.apply_optimization_plan([passes.Repack(), faulty])
    faulty.step = "manifest"
    with pytest.raises(OptimizationApplicationError, match="Bang: manifest"):
        tts.optimization_manifest()
    assert tts.optimization_result() is not None
    tts.restore_optimization_plan()
    assert vars(passes.observe(tts)) == vars(before)


def test_weights_that_are_lost_for_good_are_reported(tiny_checkpoint, passes, tmp_path):
    """The checkpoint is gone, and a pass has destroyed weights: the error says so."""
    import shutil

    import qwen3tts

    copy = shutil.copytree(tiny_checkpoint(), tmp_path / "model")
    with qwen3tts.load(copy, backend="cpu") as own:
        shutil.rmtree(copy)
        with pytest.raises(OptimizationApplicationError) as caught:
            own.apply_optimization_plan(Faulty(step="apply: before"))
        assert (caught.value.rollback_errors, caught.value.intact) == ((), True)  # nothing was touched
        with pytest.raises(OptimizationApplicationError, match="load the model again") as caught:
            own.apply_optimization_plan(Faulty(step="apply: after"))
        assert len(caught.value.rollback_errors) == 1
        assert not caught.value.intact


# ------------------------------------------------------------ changes that torch does not tell


def _weight(model):
    return model.talker.model.layers[0].mlp.up_proj.weight


def _replace(tensor, value):
    tensor.data = value


WEIGHTS = {
    "in place": lambda m: _weight(m).mul_(2),
    "through data": lambda m: _weight(m).data.mul_(2),
    "through numpy": lambda m: _weight(m).detach().numpy().__imul__(2),
    "other data": lambda m: _replace(_weight(m), _weight(m).data * 2),
    "another weight's data": lambda m: _replace(_weight(m), m.talker.model.layers[1].mlp.up_proj.weight.data),
    "another layout": lambda m: _replace(_weight(m), _weight(m).data.T.contiguous().T),
    "no storage": lambda m: (_replace(_weight(m), _weight(m).data.clone()), _weight(m).untyped_storage().resize_(0)),
    "rows exchanged": lambda m: _replace(_weight(m), _weight(m).data.flip(0)),
    "one sign": lambda m: m.codec.model.decoder[0].conv.weight.data[0, 0, 0].neg_(),
}
TABLES = {
    "the talker's angles": lambda m: m.talker.rotary.cos.mul_(2),
    "the predictor's angles": lambda m: m.talker.code_predictor.rotary.sin.neg_(),
    "codebook": lambda m: _first(m, "entries").zero_(),
    "activation": lambda m: _first(m, "gain").mul_(2),
    "padding": lambda m: m.frames._pad.mul_(3),
    "other padding": lambda m: _replace(m.frames._pad, m.frames._pad[:1].clone()),
    "suppressed tokens": lambda m: m.frames.picker._suppressed.logical_not_(),
}
ATTRIBUTES = {
    "rows": lambda m: setattr(m.frames, "_rows", None),
    "a row": lambda m: m.frames._rows.update({99: object()}),
    "counter": lambda m: setattr(m.frames, "_next_slot", None),
    "frames": lambda m: vars(m.frames).clear(),
    "picker": lambda m: vars(m.frames.picker).clear(),
    "end of speech": lambda m: setattr(m.frames.picker, "_eos_id", 1),
    "class": lambda m: setattr(m.talker.text_projection.linear_fc1, "__class__", torch.nn.Identity),
    "gradients": lambda m: _weight(m).requires_grad_(True),
}


def _first(model, attribute):
    return next(vars(part)[attribute] for part in model.codec.model.modules() if attribute in vars(part))


@dataclass(frozen=True, kw_only=True)
class Careless(OptimizationPass):
    """Changes something in one of its methods, and does not take it back."""

    pass_id = "test.careless"
    optimization_kind = "kernels"
    damage: object
    where: str
    then: object = None

    def manifest_configuration(self):
        return {}

    def _at(self, where, model):
        if where == self.where:
            with torch.inference_mode():
                self.damage(model)
            if self.then is not None:
                raise self.then

    def validate(self, model, context):
        self._at("validate", model)

    def apply(self, model, context):
        self._at("apply", model)
        return PassResult(model)

    def restore(self, model, state, context):
        self._at("restore", model)
        return model


@pytest.mark.parametrize("name", WEIGHTS | TABLES | ATTRIBUTES)
def test_a_failed_pass_leaves_no_byte_changed(tts, passes, name):
    before = passes.observe(tts)
    damage = (WEIGHTS | TABLES | ATTRIBUTES)[name]
    with pytest.raises(OptimizationApplicationError) as caught:
        tts.apply_optimization_plan([passes.Repack(), Careless(damage=damage, where="apply", then=Bang("late"))])
    assert isinstance(caught.value.cause, Bang)
    assert caught.value.intact
    assert vars(passes.observe(tts)) == vars(before)


@pytest.mark.parametrize("name", WEIGHTS | TABLES)
@pytest.mark.parametrize("where", ["apply", "restore"])
def test_bytes_that_are_not_given_back_are_noticed(tts, passes, name, where):
    before = passes.observe(tts)
    tts.apply_optimization_plan([passes.Quiet(), Careless(damage=(WEIGHTS | TABLES)[name], where=where)])
    with pytest.raises(OptimizationApplicationError, match=r"not given back.* by 'test.quiet' or 'test.care") as caught:
        tts.restore_optimization_plan()
    assert caught.value.intact
    assert tts.optimization_result() is None
    assert vars(passes.observe(tts)) == vars(before)


@pytest.mark.parametrize("name", WEIGHTS | TABLES | ATTRIBUTES)
def test_validate_only_looks(tts, passes, name):
    before = passes.observe(tts)
    faulty = Careless(damage=(WEIGHTS | TABLES | ATTRIBUTES)[name], where="validate")
    with pytest.raises(OptimizationPlanError, match="'test.careless@1'.* changed the model while it was asked"):
        tts.apply_optimization_plan([passes.Quiet(), faulty])
    assert vars(passes.observe(tts)) == vars(before)


@pytest.mark.parametrize("name", ["through data", "padding", "rows"])
@pytest.mark.parametrize(
    ("then", "raised"),
    [
        (OptimizationCompatibilityError("no"), OptimizationCompatibilityError),
        (Bang("no"), OptimizationApplicationError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_validate_changes_nothing_when_it_refuses(tts, passes, name, then, raised):
    before = passes.observe(tts)
    faulty = Careless(damage=(WEIGHTS | TABLES | ATTRIBUTES)[name], where="validate", then=then)
    with pytest.raises(raised):
        tts.apply_optimization_plan([faulty, passes.Quiet()])
    assert vars(passes.observe(tts)) == vars(before)


def test_a_checksum_tells_bytes_apart(seed):
    """Odd sizes, layouts and types: equal bytes give equal sums wherever they lie, any other byte another one."""
    random = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high, (), generator=random))

    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.uint8):
        for size in (1, 3, 7, 8191 * 8, number(1, 300), number(65000, 400_000)):
            raw = torch.randint(0, 2, (size,), generator=random, dtype=torch.uint8)
            tensor = (raw.bool() if dtype is torch.bool else raw.to(dtype)).clone()
            same = torch.cat((tensor[:1], tensor))[1:]
            apart = torch.stack((tensor, tensor), 1)[:, 0]
            flipped = tensor.clone()
            flipped.view(torch.uint8)[number(0, flipped.nbytes)] ^= 1 << (0 if dtype is torch.bool else number(0, 8))
            every = tensor.clone()
            every.view(torch.uint8)[::2] ^= 1 if dtype is torch.bool else 128
            sums = checksums({"a": tensor, "b": same, "c": apart, "d": flipped, "e": every, "again": tensor})
            assert sums["a"] == sums["b"] == sums["c"] == sums["again"]
            assert sums["a"] not in (sums["d"], sums["e"]), (dtype, size)
            moved = tensor.roll(1)
            if not torch.equal(moved, tensor):
                assert checksums({"a": moved})["a"] != sums["a"], (dtype, size)
