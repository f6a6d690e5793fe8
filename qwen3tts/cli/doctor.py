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
        "backends": [
            {"name": b.name, "available": b.available, "reason": b.reason, "device": b.device} for b in probe()
        ],
    }


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
    for backend in facts["backends"]:
        state = "yes" if backend["available"] else "no "
        print(f"backend  {backend['name']:6} {state} {re.sub(r'[.]$', '', backend['reason'])}")
