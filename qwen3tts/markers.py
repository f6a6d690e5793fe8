"""Ranges that NVIDIA's (NVTX) and AMD's (ROCTX) profilers show, named after the stages. Off, they cost nothing: what
they surround is called directly."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def marker(name: str, on: bool = True) -> Iterator[None]:
    """A range "qwen3tts.<name>" around a with block."""
    if not on:
        yield
        return
    torch.cuda.nvtx.range_push(f"qwen3tts.{name}")
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()


def marked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside such a range."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        with marker(name):
            return function(*arguments, **options)

    return run
