"""A row has the same bits in every company and form."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from decode_checks.forcing import speak
from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.runtime.protocols import RowRequest

CoreOf = Callable[..., NativeFrameDecoder]
"""(slots, frames_per_replay=4, graphs=True, **options) -> a new core on the same model"""


def first_difference(a: Sequence[Tensor], b: Sequence[Tensor]) -> str:
    """ "equal", or where the first difference is."""
    for row, (x, y) in enumerate(zip(a, b, strict=True)):
        if x.shape != y.shape:
            return f"row {row}: {len(x)} and {len(y)} frames"
        different = (x != y).nonzero()
        if len(different):
            return f"row {row}: first difference at frame {int(different[0, 0])}, codebook {int(different[0, 1])}"
    return "equal"


def speak_with_hidden(core: NativeFrameDecoder, rows: Sequence[RowRequest], step: int) -> list[Tensor]:
    """All frames of rows that end by their length alone, with the bits of the last hidden state behind their codes:
    int64 [frames + 1, width]."""
    slots = core.admit(rows)
    made: list[list[Tensor]] = [[] for _ in rows]
    for _ in range(0, max(row.max_frames for row in rows), step):
        batch = core.advance(step, slots)
        for slot, codes, count in zip(batch.slots, batch.codes, batch.counts, strict=True):
            made[slots.index(slot)].append(codes[:count])
    hidden = core.hidden(slots).contiguous().view(torch.int16).cpu().long()
    for slot in slots:
        core.release(slot)
    padded = []
    for parts, bits in zip(made, hidden, strict=True):
        codes = torch.cat(parts)
        padded.append(torch.cat((torch.nn.functional.pad(codes, (0, len(bits) - codes.shape[1])), bits[None])))
    return padded


def in_places(core: NativeFrameDecoder, rows: Sequence[RowRequest], places: Sequence[int], step: int) -> list[Tensor]:
    """As `speak`, in these slots (ascending): the others are taken first and left free."""
    taken = core.admit([replace(rows[0], max_frames=1) for _ in range(places[-1] + 1)])
    for place in places:
        core.release(taken[place])
    made = speak(core, rows, step)
    for slot in taken:
        core.release(slot)
    return made


def same_bits(core_of: CoreOf, rows: Sequence[RowRequest], options: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Each way to run the rows against all of them side by side: name -> "equal" or where they differ.

    options: further arguments of core_of, each of which must give the same bits."""
    count, found = len(rows), {}
    many = core_of(count)
    together = speak(many, rows, 4)
    few = [8, min(20, count - 1)]
    for size in few:
        found[f"{size} and {count} rows"] = first_difference(together[:size], speak(many, rows[:size], 4))
    for step in (1, 3, 7):
        found[f"{step} frames at a time"] = first_difference(together[:8], speak(many, rows[:8], step))
    places = sorted({1, count // 2 - 1, count - 3})
    placed = in_places(many, rows[: len(places)], places, 4)
    found[f"in slots {places}"] = first_difference(together[: len(places)], placed)
    found["twice"] = first_difference(together, speak(many, rows, 4))
    many.close()
    eager = core_of(count, graphs=False)
    found["launched eagerly"] = first_difference(together, speak(eager, rows, 4))
    eager.close()
    alone, sample = core_of(1), sorted({0, 5 % count, 17 % count, count - 1})
    singles = [speak(alone, [rows[i]], 4)[0] for i in sample]
    alone.close()
    found[f"alone and among {count}"] = first_difference([together[i] for i in sample], singles)
    for option in options:
        core, name = core_of(count, **option), ", ".join(f"{key}={value}" for key, value in option.items())
        for size in (1, 2, 8, count):
            found[f"{size} rows, {name}"] = first_difference(together[:size], speak(core, rows[:size], 4))
        core.close()
    return found


def replays_of_one_hash(core: NativeFrameDecoder, rows: Sequence[RowRequest], replays: int) -> dict[str, Any]:
    """The same rows again and again, codes and hidden states: how often each result came."""
    frames, hashes = max(row.max_frames for row in rows), dict[str, int]()
    runs = -(-replays * core.frames_per_replay // frames)
    for _ in range(runs):
        digest = hashlib.sha256()
        for codes in speak_with_hidden(core, rows, core.frames_per_replay):
            digest.update(codes.numpy().tobytes())
        hashes[digest.hexdigest()[:16]] = hashes.get(digest.hexdigest()[:16], 0) + 1
    return {"rows": len(rows), "replays": runs * frames // core.frames_per_replay, "hashes": hashes}
