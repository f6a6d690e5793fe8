"""Passes by name: this package's, those of other packages, and broken ones."""

import importlib
import importlib.metadata
import logging
import subprocess
import sys
import threading
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

import qwen3tts
from qwen3tts.errors import OptimizationCompatibilityError, OptimizationPlanError, OptionError
from qwen3tts.optimization import Capabilities, OptimizationPass, PassRegistry, PassResult
from qwen3tts.optimization.registry import ENTRY_POINTS

ALL = ("codec-kernels", "compile", "custom-kernels", "diffusion-cache", "diffusion-sampling", "flash-attention-4")


def test_all_names_without_importing_what_they_need():
    code = (
        "import sys, qwen3tts\n"
        "names = qwen3tts.TTS.available_optimization_passes()\n"
        "heavy = ('qwen3tts._cuda', 'qwen3tts._hip', 'qwen3tts.backends.native.codec_kernels', 'flash_attn',\n"
        "         'torch._dynamo', 'qwen3tts.optimization.torch_compile')\n"
        "print(names, [name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{ALL} []"


def test_the_public_list_is_sorted():
    assert qwen3tts.TTS.available_optimization_passes() == ALL


def test_one_class_and_one_decorator(tts):
    registry = PassRegistry()

    @registry.register("third-party")
    @dataclass(frozen=True, kw_only=True)
    class ThirdParty(OptimizationPass):
        pass_id = "example.third-party"
        optimization_kind = "kernels"
        level: int = 1

        def apply(self, model, context):
            return PassResult(model)

        def restore(self, model, state, context):
            return model

    assert registry.names() == ("third-party",)
    assert registry.get("third-party") is ThirdParty
    tts.apply_optimization_plan(("third-party", {"level": 3}), registry=registry)
    assert tts.optimization_manifest("inference")["passes"][0]["configuration"] == {"level": 3}
    tts.restore_optimization_plan()
    with pytest.raises(OptionError, match=r"'levle'.*Did you mean 'level'"):
        registry.create("third-party", levle=2)
    assert registry.register("third-party")(ThirdParty) is ThirdParty  # the same class again: a module was reloaded


def test_incomplete_declarations_are_refused(passes):
    registry = PassRegistry()

    def make(**attributes):
        return type("Made", (passes.Quiet,), attributes)

    for cls, message in [
        (make(pass_id=""), "pass_id is ''"),
        (make(pass_id="a@1"), "pass_id is 'a@1'"),
        (make(optimization_kind=None), "optimization_kind is None"),
        (make(pass_version=0), "pass_version is 0"),
        (make(pass_version=True), "pass_version is True"),
        (make(capabilities=None), "capabilities is None"),
        (make(requires_architecture_support=1), "requires_architecture_support"),
        (make(restore=OptimizationPass.restore), "declared reversible, but does not override restore"),
        (type("NoApply", (OptimizationPass,), {"pass_id": "x", "optimization_kind": "y"}), "does not define apply"),
        (int, "no optimization pass"),
        (passes.Quiet(), "no optimization pass"),
    ]:
        with pytest.raises(OptimizationPlanError, match=message):
            registry.register("made")(cls)
    for name in ("", " made", None):
        with pytest.raises(OptimizationPlanError, match="cannot be registered"):
            registry.register(name)(passes.Quiet)
    registry.register("made")(passes.Quiet)
    with pytest.raises(OptimizationPlanError, match="'made' is taken by .*Quiet"):
        registry.register("made")(passes.Repack)
    for capabilities in ({"modes": ("speaking",)}, {"devices": ()}, {"dtypes": "float32"}, {"reversible": 1}):
        with pytest.raises(OptimizationPlanError):
            Capabilities(**capabilities)


def test_a_declaration_on_an_object_does_not_count(tts, passes):
    @dataclass
    class Sneaky(passes.Quiet.__mro__[1]):
        pass_id = "test.sneaky"
        optimization_kind = "kernels"

        def apply(self, model, context):
            return PassResult(model)

        def restore(self, model, state, context):
            return model

    sneaky = Sneaky()
    sneaky.pass_id = "test.other"
    with pytest.raises(OptimizationPlanError, match="sets pass_id on the object"):
        tts.apply_optimization_plan(sneaky)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs a package with entry points: a good one, and three that are broken in different ways."""
    folder = tmp_path / "example_passes-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: example-passes\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        f"[{ENTRY_POINTS}]\n"
        "example-good = example_passes_good:Good\n"
        "example-raises = example_passes_raises:Any\n"
        "example-absent = example_passes_absent:Any\n"
        "example-incomplete = example_passes_good:Incomplete\n"
        "compile = example_passes_good:Good\n"
    )
    (tmp_path / "example_passes_good.py").write_text(
        "from qwen3tts.optimization import OptimizationPass, PassResult\n"
        "class Good(OptimizationPass):\n"
        "    pass_id, optimization_kind = 'example.good', 'kernels'\n"
        "    def apply(self, model, context): return PassResult(model)\n"
        "    def restore(self, model, state, context): return model\n"
        "class Incomplete(OptimizationPass): pass\n"
    )
    (tmp_path / "example_passes_raises.py").write_text("raise RuntimeError('broken on import.')\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("example_passes_good", None)


def test_entry_points_are_found_when_they_are_needed(package, tts, caplog):
    lazy = dict.fromkeys(ALL, "qwen3tts.optimization.diffusion:DiffusionCache")
    registry = PassRegistry(lazy, entry_points=ENTRY_POINTS)
    registry.get("diffusion-cache")
    assert "example_passes_good" not in sys.modules, "a known name needs no search"
    with caplog.at_level(logging.WARNING):
        tts.apply_optimization_plan("example-good", registry=registry)
    assert tts.optimization_manifest("inference")["passes"][0]["pass"] == "example.good"
    tts.restore_optimization_plan()
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 4
    assert any("'example-raises'" in message and "broken on import" in message for message in warned)
    assert any("'compile'" in message and "taken" in message for message in warned)
    assert registry.names() == tuple(sorted((*ALL, "example-good")))
    with pytest.raises(OptimizationPlanError, match=r"could not be loaded: RuntimeError: broken on import\.$"):
        registry.get("example-raises")


def test_the_list_asks_for_entry_points(package, caplog):
    assert PassRegistry(entry_points=ENTRY_POINTS).names() == ("compile", "example-good")
    assert len(caplog.records) == 3


@pytest.mark.parametrize("by", ["name", "entry point"])
def test_two_threads_import_the_same_pass(tmp_path, monkeypatch, by):
    """One asks the registry for it while the other is in the middle of importing its module."""
    lazy, group = ({"slow": "slow_passes:Slow"}, None) if by == "name" else ({}, "test.slow")
    registry, importing, asking = PassRegistry(lazy, entry_points=group), threading.Event(), threading.Event()
    (tmp_path / "slow_passes.py").write_text(
        "import slow_hooks as hooks\n"
        "from qwen3tts.optimization import OptimizationPass, PassResult\n"
        "hooks.importing.set()\n"
        "hooks.asking.wait(20)\n"
        "@hooks.registry.register('slow')\n"
        "class Slow(OptimizationPass):\n"
        "    pass_id, optimization_kind = 'example.slow', 'kernels'\n"
        "    def apply(self, model, context): return PassResult(model)\n"
        "    def restore(self, model, state, context): return model\n"
    )
    hooks = SimpleNamespace(registry=registry, importing=importing, asking=asking)
    monkeypatch.setitem(sys.modules, "slow_hooks", hooks)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    import_module = importlib.import_module

    def noting_import(name, package=None):
        asking.set()
        return import_module(name, package)

    def noting_search(**selected):
        asking.set()
        return [importlib.metadata.EntryPoint("slow", "slow_passes:Slow", "test.slow")]

    monkeypatch.setattr(importlib, "import_module", noting_import)
    monkeypatch.setattr(importlib.metadata, "entry_points", noting_search)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(import_module("slow_passes").Slow), daemon=True),
        threading.Thread(target=lambda: importing.wait(20) and found.append(registry.get("slow")), daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert len(found) == 2, "the threads wait for each other"
    assert found[0] is found[1]
    assert registry.names() == ("slow",)
    sys.modules.pop("slow_passes", None)


def test_lazy_names_whose_module_is_missing(tts):
    registry = PassRegistry({"gone": "qwen3tts.optimization.gone:Gone", "wrong": "qwen3tts.optimization.passes:Gone"})
    for name in ("gone", "wrong"):
        with pytest.raises(OptimizationPlanError, match=f"'{name}' cannot be imported from qwen3tts.optimization"):
            tts.apply_optimization_plan(name, registry=registry)


# ------------------------------------------------------------ passes that do not apply here


@pytest.mark.parametrize("name", ["diffusion-cache", "diffusion-sampling"])
def test_diffusion_passes_are_not_applicable(tts, name):
    result = tts.apply_optimization_plan(name)
    assert not result.applied[0].applicable
    entry = tts.optimization_manifest("inference")["passes"][0]
    assert entry["runtime_status"]["outcome"] == "not-applicable"
    assert "this model has no diffusion stage" in entry["runtime_status"]["reason"]
    tts.restore_optimization_plan()
    with pytest.raises(OptimizationCompatibilityError, match="no diffusion stage"):
        tts.apply_optimization_plan((name, {"policy": "required"}))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("diffusion-cache", {"threshold": 2}),
        ("diffusion-cache", {"threshold": True}),
        ("diffusion-cache", {"warmup_steps": -1}),
        ("diffusion-sampling", {"steps": 0}),
        ("diffusion-sampling", {"solver": "magic"}),
        ("diffusion-sampling", {"policy": "always"}),
        ("compile", {"mode": "fast"}),
        ("compile", {"mode": "default", "backend": "eager"}),
        ("compile", {"backend": None}),
        ("compile", {"fullgraph": "yes"}),
        ("compile", {"dynamic": 1}),
        ("compile", {"requirement": "maybe"}),
        ("flash-attention-4", {"policy": "never"}),
        ("flash-attention-4", {"plicy": "auto"}),
    ],
)
def test_options_are_strict(tts, name, options):
    with pytest.raises(OptionError) as caught:
        tts.apply_optimization_plan((name, options))
    assert next(iter(options)) in str(caught.value)
    assert isinstance(caught.value, ValueError)
