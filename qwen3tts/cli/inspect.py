"""`qwen3tts inspect` and `qwen3tts voices`: what a checkpoint is, and who speaks in it."""

import json
import logging
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qwen3tts.cli import parameters as p
from qwen3tts.cli.console import exit_codes, set_up_logging

if TYPE_CHECKING:
    from rich.table import Table

logger = logging.getLogger(__name__)

Model = Annotated[str, typer.Argument(help="Folder or hub id of a checkpoint.")]
AsJson = Annotated[bool, typer.Option("--json", metavar=p.FLAG, help="Print JSON.")]


def inspect(
    model: Model,
    as_json: AsJson = False,
    revision: p.Revision = None,
    cache_dir: p.CacheDir = None,
    offline: p.Offline = False,
    verbose: p.Verbose = 0,
) -> None:
    """Print what a checkpoint is: type, sizes, weights, voices, languages. Reads no weights."""
    set_up_logging(verbose)
    with exit_codes():
        from qwen3tts.checkpoint import describe, open_checkpoint

        facts = describe(open_checkpoint(model, revision=revision, cache_dir=cache_dir, offline=offline))
        if as_json:
            print(json.dumps(facts, indent=2))
        else:
            _show_facts(facts)


def voices(
    model: Model,
    as_json: AsJson = False,
    revision: p.Revision = None,
    cache_dir: p.CacheDir = None,
    offline: p.Offline = False,
    verbose: p.Verbose = 0,
) -> None:
    """List the preset voices and the languages of a checkpoint."""
    set_up_logging(verbose)
    with exit_codes():
        from qwen3tts.checkpoint import open_checkpoint
        from qwen3tts.voice.resolve import supported_languages, supported_speakers

        checkpoint = open_checkpoint(model, revision=revision, cache_dir=cache_dir, offline=offline)
        logger.info("read %s", checkpoint.path)
        config = checkpoint.config
        speakers = {name: config.talker.speaker_dialects.get(name) for name in supported_speakers(config)}
        languages = supported_languages(config)
        if as_json:
            print(json.dumps({"type": config.model_type, "speakers": speakers, "languages": languages}, indent=2))
            return
        for name, dialect in speakers.items():
            print(f"{name}  (in chinese: {_words(dialect)})" if dialect else name)
        if not speakers:
            how = {
                "base": "it speaks with cloned ones: make a file with `qwen3tts clone` and give it with --voice-file",
                "voice_design": "describe one: --instruct",
            }
            print(f"This {config.model_type} model has no preset voices; {how.get(config.model_type, '')}")
        print("languages: " + ", ".join(languages))


STACKS = ("talker", "code_predictor", "codec_decoder")


def _show_facts(facts: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    size = facts["size"]
    console.print(f"{facts['type']} model, {size.replace('b', '.')}B ({size})", style="bold", markup=False)
    console.print(facts["path"], markup=False, soft_wrap=True)
    weights = {
        name: {"tensors": w["tensors"], "parameters": w["parameters"], "MB": f"{w['bytes'] / 1e6:,.1f}",
               "dtypes": ", ".join(w["dtypes"]), "files": w["files"]}
        for name, w in facts["weights"].items()
    }  # fmt: skip
    console.print(_columns("weights", weights))
    console.print(_columns("transformers", {name: facts[name] for name in STACKS}))
    console.print(_columns("parameters", {"": facts["parameters"]}))
    dialects = ", ".join(_words(name) for name in facts["dialects"])
    speakers = (f"{name} ({_words(dialect)})" if dialect else name for name, dialect in facts["speakers"].items())
    console.print(f"dialects: {dialects or 'none'}", soft_wrap=True)
    console.print(f"speakers: {', '.join(speakers) or 'none'}", markup=False, soft_wrap=True)
    shown = {"type", "size", "path", "weights", "parameters", "dialects", "speakers", *STACKS}
    for name, value in facts.items():
        if name not in shown:
            console.print(f"{_words(name)}: {_text(value)}", markup=False, soft_wrap=True)


def _columns(title: str, columns: dict[str, dict[str, Any]]) -> "Table":
    """A table with one column for each entry of `columns`; a row for each key that any of them has."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=any(columns))
    # In a narrow terminal rich would cut words off.
    table.add_column("", no_wrap=True)
    for name in columns:
        table.add_column(_words(name), justify="right", overflow="fold")
    for key in dict.fromkeys(key for column in columns.values() for key in column):
        table.add_row(_words(key), *(_text(column.get(key)) for column in columns.values()))
    return table


def _words(name: str) -> str:
    return name.replace("_", " ")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        entries = (f"{name} {_text(entry)}".strip() if entry is not None else name for name, entry in value.items())
        return ", ".join(entries) or "none"
    return ", ".join(map(_text, value)) or "none"
