"""scripts/hip_table.py reads the compiler's remarks, and a spill is a failure."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "hip_table.py"
FIGURES = {
    "TotalSGPRs": 18,
    "VGPRs": 9,
    "AGPRs": 0,
    "ScratchSize [bytes/lane]": 0,
    "Occupancy [waves/SIMD]": 8,
    "SGPRs Spill": 0,
    "VGPRs Spill": 0,
    "LDS Size [bytes/block]": 64,
}
NAME = "_ZN8qwen3tts12_GLOBAL__N_16kernelIfLi4EEEvPKfi"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("hip_table", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["hip_table"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["hip_table"]


def remarks(**changes):
    lines = [f"Function Name: {NAME}", *(f"    {key}: {value}" for key, value in {**FIGURES, **changes}.items())]
    end = "[-Rpass-analysis=kernel-resource-usage]\n   7 | void\n"
    return "".join(f"a.cpp:7:1: remark: {line} {end}" for line in lines)


def test_figures_are_read(script):
    (usage,) = script.parse(remarks(), "gfx942")
    assert usage == script.Usage("kernel<float, 4>", "gfx942", 9, 0, 18, 64, 0, 0, 0, 8)
    assert not usage.spills
    assert "| `kernel<float, 4>` | gfx942 | 9 | 18 | 64 | 0 | 0 | 8 |" in script.table([usage], "clang")


@pytest.mark.parametrize("figure", ["ScratchSize [bytes/lane]", "SGPRs Spill", "VGPRs Spill"])
def test_spills_are_found(script, figure):
    assert script.parse(remarks(**{figure: 4}), "gfx942")[0].spills


def test_a_missing_figure_is_an_error(script):
    with pytest.raises(ValueError, match="said nothing of lds for kernel<float, 4> on gfx942"):
        script.parse(remarks().replace("LDS Size", "Some Size"), "gfx942")
