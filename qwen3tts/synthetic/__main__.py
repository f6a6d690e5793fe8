"""Writes a synthetic Qwen3-TTS-12Hz checkpoint: real layout, seeded random weights. It makes sound, not words."""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from qwen3tts.errors import OptionError, Qwen3TTSError
from qwen3tts.synthetic.configs import PRESETS, TYPES
from qwen3tts.synthetic.generator import make_checkpoint

FOLDER = "The folder to write is given as --out FOLDER"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, and none of the page of usage that would hide it."""
        print(f"error: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def _parser() -> _Parser:
    parser = _Parser(prog="python -m qwen3tts.synthetic", description=__doc__)
    parser.add_argument("--preset", default="tiny", choices=PRESETS, help="sizes (default: tiny)")
    parser.add_argument("--type", default="custom_voice", choices=TYPES, help="model type (default: custom_voice)")
    parser.add_argument("--out", metavar="FOLDER", help="folder to write; required")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: 0)")
    parser.add_argument(
        "--eos-gain",
        type=float,
        default=2.0,
        help="scale of the end-of-speech row: 2.0 ends after 2 to 20 frames, 0.5 or 0 practically never (default: 2.0)",
    )
    parser.add_argument("--tiktoken", help="for small, 0.6b, 1.7b: qwen.tiktoken, or a dashscope wheel, which holds it")
    parser.add_argument("--tokenizer-from", help="for small, 0.6b, 1.7b: a checkpoint to copy the tokenizer from")
    parser.add_argument("--transformers-version", default="4.57.2", help="written to config.json (default: 4.57.2)")
    parser.add_argument(
        "--override", help='JSON file {"config": {...}, "speech_tokenizer": {...}} merged into the configs'
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the folder if it is there")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 with a message on stderr; 130 after Ctrl-C."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest:
        parser.error(f"there is no option {rest[0]}" if rest[0].startswith("-") else f"what is {rest[0]!r}? " + FOLDER)
    if not options.out:
        parser.error("--out is missing. " + FOLDER)
    if not math.isfinite(options.eos_gain):
        parser.error(f"--eos-gain is {options.eos_gain}; expected a finite number")
    start = time.perf_counter()
    try:
        override = None if options.override is None else _read_json(Path(options.override))
        folder = make_checkpoint(
            options.out,
            preset=options.preset,
            model_type=options.type,
            seed=options.seed,
            eos_gain=options.eos_gain,
            tiktoken=options.tiktoken,
            tokenizer_from=options.tokenizer_from,
            transformers_version=options.transformers_version,
            override=override,
            overwrite=options.overwrite,
        )
    except (Qwen3TTSError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    print(f"{folder}: {options.preset} {options.type}, {time.perf_counter() - start:.1f} s")
    return 0


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"--override: {str(path)!r} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise OptionError(f"--override: {str(path)!r} is not JSON in UTF-8: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
