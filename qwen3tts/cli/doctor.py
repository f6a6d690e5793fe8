"""`qwen3tts doctor`: what is installed, which GPU, which backends and why not."""

import importlib.metadata
import json
import platform
import re
import sys
from typing import Annotated, Any

import typer

from qwen3tts._version import __version__
from qwen3tts.cli.console import exit_codes

OPTIONAL = ("matplotlib",)
PACKAGES = (
    "torch", "numpy", "safetensors", "tokenizers", "huggingface-hub", "soundfile", "soxr", "rich", "typer",
)  # fmt: skip


def doctor(as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.")] = False) -> None:
    """Print what is installed, which GPUs there are, and which backends can be used or why not."""
    with exit_codes():
        facts = examine()
        if as_json:
            print(json.dumps(facts, indent=2))
        else:
            _show(facts)


def examine() -> dict[str, Any]:
    """Everything that `doctor` prints."""
    import torch

    from qwen3tts.backends import probe

    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append({"name": properties.name, "memory_bytes": properties.total_memory, "device": f"cuda:{index}"})
    return {
        "qwen3tts": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: _version(name) for name in (*PACKAGES, *OPTIONAL)},
        "torch": {
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            "threads": torch.get_num_threads(),
        },
        "gpus": gpus,
        "native": {name: _native(name) for name in ("cuda", "hip")},
        "backends": [
            {"name": b.name, "available": b.available, "reason": b.reason, "device": b.device} for b in probe()
        ],
    }


def _native(name: str) -> dict[str, Any]:
    """What was built of a backend's kernels, and the GPUs they see. Their runtime is asked only if it is torch's."""
    from qwen3tts.backends.native import open_native
    from qwen3tts.backends.native.build_info import build_record
    from qwen3tts.errors import BackendError

    record = build_record(name)
    facts: dict[str, Any] = {
        "built": record.built, "reason": record.reason, "toolkit": record.toolkit, "targets": record.targets,
        "platform": None, "devices": [], "versions": None,
    }  # fmt: skip
    try:
        module = open_native(name).module
    except BackendError:
        return facts  # why is said by the backend's line
    return facts | {"platform": module.platform, "devices": module.devices(), "versions": module.versions()}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _show(facts: dict[str, Any]) -> None:
    build = facts["torch"]
    kind = f"CUDA {build['cuda']}" if build["cuda"] else f"ROCm {build['hip']}" if build["hip"] else "CPU only"
    print(f"qwen3tts {facts['qwen3tts']}, Python {facts['python']} ({facts['executable']})")
    print(f"system   {facts['system']}; only Linux is tested")
    print(f"torch    built for {kind}, {build['threads']} CPU threads")
    for name, version in facts["packages"].items():
        missing = "not installed; needed for --plot only" if name in OPTIONAL else "NOT INSTALLED"
        print(f"  {name:16} {version or missing}")
    for gpu in facts["gpus"]:
        print(f"gpu      {gpu['device']}: {gpu['name']}, {gpu['memory_bytes'] / 2**30:.1f} GiB")
    if not facts["gpus"]:
        print("gpu      none that torch can use")
    for name, native in facts["native"].items():
        if not native["built"]:
            print(f"kernels  {name:6} not built: {native['reason']}")
            continue
        print(f"kernels  {name:6} {native['toolkit']} for {native['targets'].replace(';', ', ')}")
        for device in native["devices"]:
            size = f"{device['multiprocessors']} multiprocessors, {device['l2_bytes'] / 2**20:.0f} MiB L2"
            print(f"                {device['name']}: {device['architecture']}, waves of {device['wave_size']}, {size}")
    for backend in facts["backends"]:
        state = "yes" if backend["available"] else "no "
        print(f"backend  {backend['name']:6} {state} {re.sub(r'[.]$', '', backend['reason'])}")
