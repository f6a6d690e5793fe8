"""The self-test's report: what passes, what fails and how it says so. On a card the times are there as well."""

import dataclasses
import importlib
import json
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from qwen3tts.backends.native import module as native_module
from qwen3tts.backends.native.cases import different_elements, largest_difference, units_in_last_place
from qwen3tts.backends.native.decode import attention_cases
from qwen3tts.backends.native.decode import linear as decode_linear
from qwen3tts.backends.native.rms_norm import selftest_cases
from qwen3tts.backends.native.selftest import OPERATIONS, all_cases, run_selftest
from qwen3tts.cli.main import app


def test_every_operation_has_cases_and_passes_them(native, seed):
    cases = all_cases(native)
    built = [name for name in OPERATIONS if hasattr(native.module, "Decoder") or not name.startswith("decode.")]
    for name in built:
        own = importlib.import_module(f"qwen3tts.backends.native.{name}").selftest_cases()
        assert any(case.small for case in own)
        assert {case.kernel for case in own} <= {case.kernel for case in cases}
    seen = []
    report = run_selftest(native, cases, seed=seed, report=seen.append)
    assert {case.kernel for case in cases if case.small} == {case["kernel"] for case in report["cases"]} or (
        native.device.type == "cuda"
    )
    failed = [case for case in report["cases"] if not case["passed"]]
    assert report["passed"], failed
    assert len(seen) == len(report["cases"])
    json.dumps(report, allow_nan=False)
    on_card = native.device.type == "cuda"
    for case in report["cases"]:
        assert case["bytes_moved"] > 0
        assert (case["microseconds"] is not None) == on_card
    assert (report["copy_gigabytes_per_second"] is not None) == on_card
    assert report["machine"]["platform"] == native.platform


def test_a_module_without_the_decode_core_is_not_asked_for_it(emulated):
    native = emulated(32)
    without = dataclasses.replace(native, module=SimpleNamespace(name="a module without Decoder"))
    kernels = {case.kernel for case in all_cases(native)} - {case.kernel for case in all_cases(without)}
    assert kernels == {case.kernel for case in (*decode_linear.selftest_cases(), *attention_cases.selftest_cases())}


def test_a_wrong_kernel_fails(emulated, seed):
    native = emulated(32)
    right = selftest_cases()[0]

    def wrong(native, generator):
        call = right.prepare(native, generator)
        return dataclasses.replace(call, outputs=lambda: tuple(output * 1.001 for output in call.outputs()))

    def raising(native, generator):
        raise RuntimeError("no such thing")

    def nan(native, generator):
        call = right.prepare(native, generator)
        return dataclasses.replace(call, outputs=lambda: tuple(output * float("nan") for output in call.outputs()))

    cases = [right, *(dataclasses.replace(right, prepare=prepare) for prepare in (wrong, raising, nan))]
    report = run_selftest(native, cases, seed=seed)
    assert [case["passed"] for case in report["cases"]] == [True, False, False, False]
    assert not report["passed"]
    assert report["cases"][1]["error"] > right.bound
    assert report["cases"][2]["message"] == "RuntimeError: no such thing"
    assert report["cases"][3]["error"] is None


def test_the_command(emulated, monkeypatch, tmp_path):
    runner = CliRunner()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = runner.invoke(app, ["selftest", "--backend", "cuda"])
    assert result.exit_code == 2
    monkeypatch.setattr("qwen3tts.backends.native.open_native", lambda name, device: emulated(64))
    file = tmp_path / "report.json"
    arguments = ["selftest", "--backend", "hip", "--kernel", "rms_norm", "--json", str(file)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "0 failed" in result.output
    assert {case["kernel"] for case in json.loads(file.read_text())["cases"]} == {"rms_norm"}
    broken = dataclasses.replace(selftest_cases()[0], bound=-1.0)
    monkeypatch.setattr("qwen3tts.backends.native.selftest.all_cases", lambda native: [broken])
    result = runner.invoke(app, ["selftest", "--backend", "hip"])
    assert result.exit_code == 1
    assert "FAILED" in result.output
    assert runner.invoke(app, [*arguments[:3], "--kernel", "rms_nrom"]).exit_code == 2


def test_no_gpu_is_a_clear_error():
    with pytest.raises(native_module.BackendError):
        native_module.open_native("cuda", "cpu")


def test_units_of_error():
    one = torch.tensor([1.0])
    assert units_in_last_place([one], [torch.nextafter(one, torch.tensor([2.0]))]) == 1
    assert units_in_last_place([torch.tensor([-0.0])], [torch.tensor([0.0])]) == 0
    tiny = torch.tensor([1e-45])
    assert units_in_last_place([-tiny], [tiny]) == 2
    assert units_in_last_place([one.bfloat16()], [one.bfloat16() + 2**-7]) == 1
    assert units_in_last_place([one * float("nan")], [one]) != units_in_last_place([one], [one])
    assert largest_difference([torch.tensor([1.0, 10.0])], [torch.tensor([1.5, 10.0])]) == pytest.approx(0.05)
    assert different_elements([torch.tensor([1, 2])], [torch.tensor([1, 3])]) == 1
