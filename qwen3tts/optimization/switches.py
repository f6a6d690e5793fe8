"""Environment switches that change an option of a pass in whatever profile is loaded: one table.

A switch is on when its variable is set to anything but "", "0", "false", "no" or "off". The manifest's options and the
profile's hash show the change, and the profile lists the switches that were used.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qwen3tts.optimization.profiles import Profile

_OFF = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Switch:
    """One variable, the backend it belongs to, and the option it sets."""

    variable: str
    backend: str
    pass_name: str
    option: str
    value: Any
    what: str


SWITCHES = (
    Switch("QWEN3_HIP_CPU_SAMPLING", "hip", "custom-kernels", "sampler", False, "sample in plain torch"),
    Switch("QWEN3_HIP_DIRECT_TRANSCONV", "hip", "codec-kernels", "method", "direct", "transposed convolution, direct"),
    Switch("QWEN3_HIP_TILED_CODEC", "hip", "codec-kernels", "method", "tiled", "transposed convolution, tiled"),
    Switch("QWEN3_HIP_ROCTX", "hip", "custom-kernels", "markers", True, "ROCTX ranges round the stages"),
    Switch("QWEN3TTS_NVTX", "cuda", "custom-kernels", "markers", True, "NVTX ranges round the stages"),
)


def apply_switches(profile: Profile, environment: Mapping[str, str] | None = None) -> Profile:
    """The profile with the options that the environment's switches set. A later line of the table wins."""
    environment = os.environ if environment is None else environment
    for switch in SWITCHES:
        on = environment.get(switch.variable, "").strip().lower() not in _OFF
        if on and switch.backend == profile.backend:
            profile = profile.with_options(switch.pass_name, {switch.option: switch.value}, switch.variable)
    return profile
