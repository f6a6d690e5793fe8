"""Command line options that several commands have, and their way into GenerateOptions."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qwen3tts.errors import OptionError

SAMPLING = "Sampling (default: the checkpoint's generation_config.json)"
CHECKPOINT = "Checkpoint"
RUNTIME = "Runtime"
MAX_SEED_DIGITS = 40
FLAG = ""
"""metavar of an option without a value: typer would show the type of the variable behind it"""

Verbose = Annotated[
    int,
    typer.Option(
        "--verbose", "-v", count=True, metavar=FLAG, show_default=False, help="Log steps and times; twice for details."
    ),
]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.", metavar="FILE")]

Revision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit of a hub checkpoint.", rich_help_panel=CHECKPOINT)
]
CacheDir = Annotated[Path | None, typer.Option(help="Folder for downloads.", rich_help_panel=CHECKPOINT)]
Offline = Annotated[
    bool, typer.Option("--offline", metavar=FLAG, help="Never use the network.", rich_help_panel=CHECKPOINT)
]

Backend = Annotated[str, typer.Option(help="auto, torch, cpu, cuda or hip.", rich_help_panel=RUNTIME)]
Device = Annotated[str | None, typer.Option(help="Device of PyTorch, for instance cuda:1.", rich_help_panel=RUNTIME)]
Profile = Annotated[
    str | None,
    typer.Option(
        help="reference, default, low-latency, throughput, or a .toml file.", show_default="default",
        rich_help_panel=RUNTIME,
    ),
]  # fmt: skip
Verify = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify", metavar=FLAG, rich_help_panel=RUNTIME,
        help="Compare each optimization pass with the plain model, once per machine.",
    ),
]  # fmt: skip
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.", rich_help_panel=RUNTIME)]

MaxFrames = Annotated[
    int | None, typer.Option(help="Stop after so many frames of 80 ms. Default: a generous budget for the text.")
]
Lookahead = Annotated[
    int | None, typer.Option(help="Streamed text: tokens read before speech begins.", show_default="8")
]

RepetitionPenalty = Annotated[float | None, typer.Option(help="1 = off.", rich_help_panel=SAMPLING)]
DoSample = Annotated[
    bool | None,
    typer.Option("--do-sample/--no-do-sample", metavar=FLAG, help="Draw, or be greedy.", rich_help_panel=SAMPLING),
]
TopK = Annotated[int | None, typer.Option(help="Keep the k best; 0 = all.", rich_help_panel=SAMPLING)]
TopP = Annotated[float | None, typer.Option(help="Keep the best with this total.", rich_help_panel=SAMPLING)]
Temperature = Annotated[float | None, typer.Option(help="Above 0; lower is calmer.", rich_help_panel=SAMPLING)]
SubDoSample = Annotated[
    bool | None,
    typer.Option(
        "--subtalker-dosample/--no-subtalker-dosample",
        metavar=FLAG,
        help="Like --do-sample, for codebooks 1-15.",
        rich_help_panel=SAMPLING,
    ),
]
SubTopK = Annotated[int | None, typer.Option(help="Like --top-k, for codebooks 1-15.", rich_help_panel=SAMPLING)]
SubTopP = Annotated[float | None, typer.Option(help="Like --top-p, for codebooks 1-15.", rich_help_panel=SAMPLING)]
SubTemperature = Annotated[
    float | None, typer.Option(help="Like --temperature, for codebooks 1-15.", rich_help_panel=SAMPLING)
]
Seed = Annotated[
    str | None, typer.Option(help="A whole number, or 'random'.", show_default="0", rich_help_panel=SAMPLING)
]


def parse_seed(seed: str) -> int | None:
    """A seed as GenerateOptions takes it; None stands for "draw one". Raises OptionError."""
    if seed == "random":
        return None
    # Python refuses to convert very many digits; what is far too large needs no exact value.
    if not (seed.isascii() and seed.isdigit()) or len(seed) > MAX_SEED_DIGITS:
        shown = seed if len(seed) <= 40 else seed[:37] + "..."
        raise OptionError(f"--seed is {shown!r}; expected a whole number from 0 up, or 'random'")
    return int(seed)


def given(**values: Any) -> dict[str, Any]:
    """The options that the user gave, ready for GenerateOptions: only those override the checkpoint's values."""
    options = {name: value for name, value in values.items() if value is not None}
    if "seed" in options:
        options["seed"] = parse_seed(options["seed"])
    return options
