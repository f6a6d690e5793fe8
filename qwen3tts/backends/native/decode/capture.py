"""Which numbers of rows, and of columns of prompts, have a graph of their own, and capturing them at load."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

logger = logging.getLogger(__name__)

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
"""rows that a launch covers; idle ones among them cost little"""
PROMPT_COLUMNS = (16, 32, 48, 64)
"""positions of prompts that go through the talker together: a product takes as long for 33 as for 48 of them"""


@dataclass(frozen=True)
class Captured:
    """One graph."""

    rows: int
    """or columns of prompts"""
    frames: int
    """0: of prompts"""
    launches: int
    seconds: float
    nbytes: int
    """device memory that was free before and is not now"""


def buckets(slots: int, wanted: Sequence[int] = BUCKETS) -> tuple[int, ...]:
    """Numbers of rows, ascending: those wanted that are fewer than the slots, and the slots. Raises ValueError for
    numbers below 1."""
    if any(rows < 1 for rows in wanted):
        raise ValueError(f"buckets of {', '.join(map(str, wanted))} rows, expected 1 or more")
    return (*sorted({rows for rows in wanted if rows < slots}), slots)


def bucket_for(rows: int, available: Sequence[int]) -> int:
    """The least bucket that covers so many rows."""
    return next(bucket for bucket in available if bucket >= rows)


def capture_graphs(
    decoder: Any, rows: Sequence[int], frames: Sequence[int], device: torch.device, stream: int
) -> tuple[Captured, ...]:
    """Captures every number of rows with every number of frames, and prompts; replays each once. All slots are idle.

    Each number of rows runs a frame first, in which idle slots write nothing: kernels are loaded before a capture."""
    cuda = device.type == "cuda"
    made: list[Captured] = []

    def add(count: int, depth: int, capture: Callable[[], int], replay: Callable[[], None]) -> None:
        free, started = _free_bytes(device), time.perf_counter()
        launches = capture()
        if cuda:
            replay()  # the first one brings the graph to the device
            torch.cuda.synchronize(device)
        seconds, used = time.perf_counter() - started, max(0, free - _free_bytes(device))
        made.append(Captured(count, depth, launches, seconds, used))
        what = f"{depth} frame{'' if depth == 1 else 's'} of {count} row{'' if count == 1 else 's'}"
        if depth == 0:
            what = f"prompts of up to {count} positions"
        logger.info("captured %s: %d launches, %.0f ms, %.1f MB", what, launches, 1e3 * seconds, used / 1e6)

    for count in sorted(rows, reverse=True):  # the largest first: what it needs of the runtime serves the others, too
        decoder.frames(count, 1, stream)
        for depth in sorted(set(frames)):
            add(count, depth, partial(decoder.capture, count, depth), partial(decoder.replay, count, depth, stream))
    for columns in sorted(PROMPT_COLUMNS, reverse=True):
        idle = partial(decoder.idle_prompt, columns, stream)
        if cuda:
            idle()
        add(columns, 0, partial(decoder.capture_prompt, columns), idle)
    logger.info(
        "captured %d graphs in %.2f s, %.1f MB",
        len(made), sum(graph.seconds for graph in made), sum(graph.nbytes for graph in made) / 1e6,
    )  # fmt: skip
    return tuple(made)


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
