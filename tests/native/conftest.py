"""The native modules that tests run against: HIP's on the CPU at both wave widths and, on a card, the real ones.

The same tests serve all of them: tensors are made on `native.device`."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from decoder_rows import PRESETS

import qwen3tts
from qwen3tts.backends.native import Native, open_native, wrap_module
from qwen3tts.backends.native.decode.weights import store_for_kernels

WAVES = (32, 64)
"""widths of the emulated waves; a module whose own WAVES has fewer is left out at the others"""
EMULATION = Path(__file__).resolve().parents[1] / "emulation" / "build.py"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Kernels are tested at both wave widths. What is made of them, and takes longer, needs one."""
    left_out = []
    for item in items:
        waves = getattr(getattr(item, "module", None), "WAVES", WAVES)
        native = item.callspec.params.get("native") if hasattr(item, "callspec") else None
        if native in {f"emulated{wave}" for wave in WAVES if wave not in waves}:
            left_out.append(item)
    if left_out:
        items[:] = [item for item in items if item not in set(left_out)]
        config.hook.pytest_deselected(items=left_out)


def emulation_build() -> ModuleType:
    """tests/emulation/build.py."""
    spec = importlib.util.spec_from_file_location("emulation_build", EMULATION)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Native]:
    """emulated(wave width) -> the HIP module run on the CPU, compiled once.

    QWEN3TTS_TEST_SANITIZE=1: with AddressSanitizer, in an environment that build.py --sanitizer-environment prints."""
    build = emulation_build()
    opened: dict[int, Native] = {}

    def make(wave: int) -> Native:
        if wave not in opened:
            folder = tmp_path_factory.mktemp(f"emulated{wave}")
            built = build.build_emulated(folder, wave, sanitize=os.environ.get("QWEN3TTS_TEST_SANITIZE") == "1")
            opened[wave] = wrap_module(build.load_emulated(built, wave))
        return opened[wave]

    return make


@pytest.fixture(
    params=[
        "emulated32",
        "emulated64",
        pytest.param("cuda", marks=pytest.mark.gpu),
        pytest.param("hip", marks=pytest.mark.gpu),
    ]
)
def native(request: pytest.FixtureRequest, emulated: Callable[[int], Native]) -> Native:
    """Each native module in turn."""
    if request.param.startswith("emulated"):
        return emulated(int(request.param.removeprefix("emulated")))
    opened = open_native(request.param)
    if "decode" in request.node.path.name and not hasattr(opened.module, "Decoder"):
        pytest.skip(f"the {request.param} module is built without the decode core")
    return opened


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[[], Path]) -> Iterator[Any]:
    with qwen3tts.load(tiny_checkpoint(), backend="cpu") as loaded:
        yield loaded


@pytest.fixture(params=[32, 64])
def tts(model: Any, emulated: Callable[[int], Native], request: pytest.FixtureRequest) -> Iterator[Any]:
    """The model with the emulated kernels at hand."""
    runtime = model.engine.runtime
    runtime.native = emulated(request.param)
    yield model
    if model.optimization_result() is not None:
        model.restore_optimization_plan()
    del runtime.native


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Callable[..., Path]) -> Iterator[Callable[..., Any]]:
    """models(dtype, kind, device) -> the loaded runtime, whose weights are in the form for kernels."""
    opened: dict[tuple[str, str, str], Any] = {}

    def make(dtype: str, kind: str = "plain", device: str = "cpu") -> Any:
        if (dtype, kind, device) not in opened:
            preset, override = PRESETS[kind]
            folder = tiny_checkpoint(preset=preset, eos_gain=2.0, override=override)
            tts = qwen3tts.load(folder, device=device, backend="torch", dtype=dtype)
            opened[dtype, kind, device] = tts, store_for_kernels(tts.engine.runtime.talker)
        return opened[dtype, kind, device][0].engine.runtime

    yield make
    for tts, form in opened.values():
        form.restore()
        tts.close()
