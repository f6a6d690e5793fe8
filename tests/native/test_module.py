"""Opening a native module: what is refused, and that nothing of a foreign runtime is called first."""

import sys
from types import SimpleNamespace

import pytest
import torch

from qwen3tts.backends import registry
from qwen3tts.backends.native import module as native_module
from qwen3tts.backends.native import open_native, wrap_module
from qwen3tts.backends.native.build_info import build_record
from qwen3tts.backends.native.checks import check
from qwen3tts.errors import BackendError, KernelArgumentError


@pytest.fixture
def machine(monkeypatch):
    """machine(cuda=..., hip=..., gpus=...): a torch built for that, on a machine with so many GPUs."""
    native_module._opened.cache_clear()

    def make(cuda=None, hip=None, gpus=1):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some Card")

    yield make
    native_module._opened.cache_clear()


@pytest.fixture
def install(monkeypatch):
    """install(name, platform, toolkit, gpus): a module that counts what is asked of its runtime."""

    def make(name, platform, toolkit, gpus=1):
        calls = []

        def devices():
            calls.append("devices")
            return [{}] * gpus

        fake = SimpleNamespace(
            platform=platform, toolkit=toolkit, runtime_major=int(toolkit.split(".")[0]), architectures="some",
            devices=devices, versions=lambda: {"driver": 12040, "runtime": 13000},
        )  # fmt: skip
        monkeypatch.setitem(sys.modules, f"qwen3tts._{name}", fake)
        return calls

    return make


def test_the_same_runtime_opens(machine, install):
    for name, platform, toolkit, versions in (
        ("cuda", "nvidia", "13.0", {"cuda": "13.0"}),
        ("cuda", "nvidia", "12.4", {"cuda": "13.0"}),
        ("hip", "amd", "6.4", {"hip": "6.2.41133-dd7f95766"}),
        ("hip", "amd", "7.0", {"hip": "7.1.25424"}),
        ("hip", "nvidia", "13.0", {"cuda": "13.1"}),
    ):
        native_module._opened.cache_clear()
        machine(**versions)
        calls = install(name, platform, toolkit)
        native = open_native(name)
        assert (native.name, native.platform, native.device) == (name, platform, torch.device("cuda", 0))
        assert open_native(name, "cuda:0") is native
        assert calls == ["devices"]


@pytest.mark.parametrize(
    ("name", "platform", "toolkit", "versions", "message"),
    [
        ("hip", "amd", "6.4", {"hip": "7.0.1"}, "built for HIP 6.4, but torch .* brings ROCm 7.0.1.*torch for ROCm 6"),
        ("hip", "amd", "7.0", {"hip": "6.3.42"}, "build qwen3tts with ROCm 6"),
        ("hip", "amd", "6.4", {"cuda": "12.8"}, "is for CUDA 12.8. Install a torch for ROCm"),
        ("hip", "amd", "6.4", {}, "is for the CPU only. Install a torch for ROCm"),
        ("hip", "nvidia", "13.0", {"cuda": "12.8"}, "brings CUDA 12.8.*Install a torch for CUDA 13"),
        ("hip", "nvidia", "13.0", {"hip": "6.4"}, "is for ROCm 6.4. Install a torch for CUDA"),
        ("cuda", "nvidia", "13.0", {"hip": "6.4"}, "is for ROCm 6.4. Install a torch for CUDA"),
        ("cuda", "nvidia", "13.0", {}, "is for the CPU only. Install a torch for CUDA"),
    ],
)  # fmt: skip
def test_another_runtime_is_refused_before_it_is_called(machine, install, name, platform, toolkit, versions, message):
    machine(**versions)
    calls = install(name, platform, toolkit)
    with pytest.raises(BackendError, match=message):
        open_native(name)
    assert calls == []


def test_no_gpu_no_module_no_such_device(machine, install, monkeypatch):
    machine(cuda="13.0", gpus=0)
    calls = install("cuda", "nvidia", "13.0")
    with pytest.raises(BackendError, match="sees none. Check the driver with nvidia-smi"):
        open_native("cuda")
    assert calls == []
    machine(cuda="13.0", gpus=2)
    with pytest.raises(BackendError, match="There is no device cuda:2: torch sees 2"):
        open_native("cuda", "cuda:2")
    with pytest.raises(BackendError, match="runs on a GPU"):
        open_native("cuda", "cpu")
    with pytest.raises(BackendError, match="sees 1 GPUs and torch sees 2.*the driver supports 12040"):
        open_native("cuda")
    with pytest.raises(BackendError, match="There is no native backend 'rocm'"):
        open_native("rocm")


def test_a_module_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "qwen3tts._hip", None)  # import raises ModuleNotFoundError
    with pytest.raises(BackendError, match=r"has no HIP kernels: .*pip install -C cmake.define.QWEN3TTS_HIP=ON"):
        open_native("hip")

    class Finder:
        def find_spec(self, name, path, target=None):
            if name == "qwen3tts._hip":
                raise ImportError("libamdhip64.so.6: cannot open shared object file")

    monkeypatch.delitem(sys.modules, "qwen3tts._hip")
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(BackendError, match="cannot be loaded: libamdhip64.so.6.*Install the libraries of ROCm"):
        open_native("hip")


def test_the_choice_of_a_backend(machine, install, monkeypatch, caplog):
    monkeypatch.setattr(registry, "_checked_device", torch.device)
    machine(cuda="13.0")
    install("cuda", "nvidia", "13.0")
    assert registry.choose("auto", None) == ("cuda", torch.device("cuda", 0))
    assert registry.choose("auto", "cpu") == ("torch", torch.device("cpu"))
    assert registry.choose("cuda", None) == ("cuda", torch.device("cuda", 0))
    assert registry.choose("torch", None) == ("torch", torch.device("cuda", 0))
    machine(hip="6.4")
    install("hip", "amd", "6.4")
    assert registry.choose("auto", None) == ("hip", torch.device("cuda", 0))
    machine(hip="7.0")
    with caplog.at_level("WARNING"):
        assert registry.choose("auto", None) == ("torch", torch.device("cuda", 0))
    assert "without the HIP kernels: qwen3tts._hip was built for HIP 6.4" in caplog.text
    with pytest.raises(BackendError, match=r"The backend 'hip' cannot be used: .*backend='torch' runs anywhere"):
        registry.choose("hip", None)
    states = {status.name: status for status in registry.probe()}
    assert not states["hip"].available
    assert "ROCm 7.0" in states["hip"].reason


def test_the_build_record(tmp_path, monkeypatch):
    text = '{"commit": "abc", "cuda": {"built": true, "reason": "", "toolkit": "13.0", "targets": "sm_90"}}'
    (tmp_path / "_build_info.json").write_text(text)
    monkeypatch.setattr("qwen3tts.backends.native.build_info.resources.files", lambda package: tmp_path)
    record = build_record("cuda")
    assert (record.built, record.toolkit, record.targets, record.commit) == (True, "13.0", "sm_90", "abc")
    (tmp_path / "_build_info.json").unlink()
    assert "source folder" in build_record("hip").reason


def test_checks_return_what_fits():
    native = wrap_module(SimpleNamespace())
    x = torch.zeros(2, 3)
    assert check("x", x, native=native, dtype=(torch.float32, torch.float16), shape=(None, 3)) is x
    assert check("x", x.T, native=native, contiguous=False).shape == (3, 2)
    for arguments, message in (
        ({"shape": (2,)}, r"x has the shape \[2, 3\], expected \[2\]"),
        ({"shape": (None, 4)}, r"expected \[any, 4\]"),
        ({"dtype": torch.int64}, "x is float32, expected int64"),
    ):
        with pytest.raises(KernelArgumentError, match=message):
            check("x", x, native=native, **arguments)
    with pytest.raises(KernelArgumentError, match="expected a contiguous tensor: use x.contiguous"):
        check("x", x.T, native=native)


def test_the_emulation_is_a_module_of_the_cpu(emulated):
    for wave in (32, 64):
        native = emulated(wave)
        assert (native.platform, native.device, native.stream()) == ("emulation", torch.device("cpu"), 0)
        assert [device["wave_size"] for device in native.module.devices()] == [wave]
