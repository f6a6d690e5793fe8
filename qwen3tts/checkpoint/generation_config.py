"""generation_config.json: the checkpoint's own sampling defaults. The file is optional."""

import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qwen3tts.checkpoint.json_object import JsonObject, read_json

logger = logging.getLogger(__name__)

GENERATION_CONFIG_FILE = "generation_config.json"
MAX_TOP_K = 1 << 20
MAX_NEW_TOKENS = 1 << 24


def _boolean(section: JsonObject, key: str) -> bool:
    return section.boolean(key)


def _top_k(section: JsonObject, key: str) -> int:
    return section.integer(key, minimum=0, maximum=MAX_TOP_K)


def _top_p(section: JsonObject, key: str) -> float:
    return section.number(key, 0.0, 1.0, above=True)


def _positive(section: JsonObject, key: str) -> float:
    return section.number(key, 0.0, math.inf, above=True)


def _new_tokens(section: JsonObject, key: str) -> int:
    return section.integer(key, minimum=2, maximum=MAX_NEW_TOKENS)


READERS: dict[str, Callable[[JsonObject, str], Any]] = {
    "do_sample": _boolean,
    "top_k": _top_k,
    "top_p": _top_p,
    "temperature": _positive,
    "repetition_penalty": _positive,
    "subtalker_dosample": _boolean,
    "subtalker_top_k": _top_k,
    "subtalker_top_p": _top_p,
    "subtalker_temperature": _positive,
    "max_new_tokens": _new_tokens,
}


def read_generation_config(folder: Path) -> dict[str, Any]:
    """The known values that the file has, under their names in the file; {} if there is no file.

    max_new_tokens is at least 2: the codes of a token are made in the step after it. Other keys are ignored.
    Raises ConfigError for a value of the wrong type or range.
    """
    path = folder / GENERATION_CONFIG_FILE
    if not os.path.lexists(path):  # a link to nowhere is an error, not "no file"
        return {}
    section = read_json(path, GENERATION_CONFIG_FILE)
    unknown = [key for key in section if key not in READERS]
    if unknown:
        logger.debug("%s: ignored %s", GENERATION_CONFIG_FILE, ", ".join(unknown))
    return {key: read(section, key) for key, read in READERS.items() if key in section}
