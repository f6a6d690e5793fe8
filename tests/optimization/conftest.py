"""A tiny model per file, what can be seen of it, and passes that do what real ones do."""

import hashlib
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

import qwen3tts
from qwen3tts import GenerateOptions
from qwen3tts.optimization import Capabilities, Evidence, OptimizationPass, PassResult
from qwen3tts.optimization.structure import Structure, modules_of, parameters_of

WEIGHT = "talker.model.layers.0.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def tts(tiny_checkpoint):
    """Custom voice whose speech goes on until a limit; every test gives it back without a plan."""
    with qwen3tts.load(tiny_checkpoint(), backend="cpu") as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def without_a_plan(request):
    """Takes back what a failed test left, so that the others mean something."""
    yield
    if "tts" in request.fixturenames:
        model = request.getfixturevalue("tts")
        if model.optimization_result() is not None:
            model._optimization._active.clear()
            pytest.fail("the test left a plan on the model")


def _contents(part):
    changing = ("_next_slot", "_predictor_cache", "_probes")
    return {name: value for name, value in vars(part).items() if name not in changing}


def _digest(tensor):
    return hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def observe(tts, seed=5):
    """All of a model that must not change: bytes of the weights, identities of its parts, what it speaks."""
    model = tts.engine.runtime
    digests, objects = {}, {}
    for name, module in modules_of(model).items():
        for key, tensor in module.state_dict().items():
            digests[f"{name}.{key}"] = _digest(tensor)
        for path, child in module.named_modules():
            objects[f"{name}.{path}"] = [id(child), sorted((k, id(v)) for k, v in _contents(child).items())]
    for name, tensor in parameters_of(model).items():
        objects[f"parameter {name}"] = (id(tensor), tensor.requires_grad)
    for name, tensor in Structure(model).tables().items():
        objects[f"table {name}"] = id(tensor)
        digests[f"table {name}"] = _digest(tensor)
    for part in (model, model.frames, model.frames.picker, model.codec):
        objects[type(part).__name__] = [id(part), sorted((k, id(v)) for k, v in _contents(part).items())]
    options = GenerateOptions(max_frames=4, seed=seed)
    speech = tts.generate("Hello, world.", tts.voices[0], options=options)
    return SimpleNamespace(
        digests=digests, objects=objects, codes=speech.codes.tobytes(), samples=speech.samples.tobytes()
    )


@dataclass(frozen=True, kw_only=True)
class Repack(OptimizationPass):
    """Multiplies by a packed copy of one weight, frees the original, and puts another codec object in place."""

    pass_id = "test.repack"
    optimization_kind = "kernels"
    capabilities = Capabilities(devices=("cpu",), changes_topology=True)
    scale: float = 1.0

    def apply(self, model, context):
        layer = model.talker.model.layers[0].mlp.down_proj
        packed = layer.weight.detach().T.contiguous()
        layer.weight.data = torch.empty(0)
        layer.forward = lambda x: F.linear(x, packed.T)
        old = model.codec
        model.codec = type(old)(old.model, old.device)
        return PassResult(model, {"codec": old, "packed": packed}, {"bytes": packed.nbytes})

    def restore(self, model, state, context):
        del model.talker.model.layers[0].mlp.down_proj.forward
        model.codec = state["codec"]
        model.reload_weights([WEIGHT])
        return model

    def runtime_manifest_status(self, result):
        return {"packed": list(result.state["packed"].shape)}

    def check(self, model, state, context):
        return Evidence("a product", "the plain product", 0.0, 1e-6, True, 0.01)


@dataclass(frozen=True, kw_only=True)
class Quiet(OptimizationPass):
    """Does nothing at all."""

    pass_id = "test.quiet"
    optimization_kind = "kernels"
    label: str = "quiet"

    def apply(self, model, context):
        return PassResult(model)

    def restore(self, model, state, context):
        return model


@pytest.fixture(scope="session")
def passes():
    """The classes above."""
    return SimpleNamespace(Repack=Repack, Quiet=Quiet, WEIGHT=WEIGHT, observe=observe)
