"""Weights onto a GPU: from the mapped file through page-locked buffers, several tensors side by side, converted and
checked there. The processor only moves bytes."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

PIECE = 8 << 20
"""bytes of a buffer"""
BUFFERS = 2
"""of each thread: one is filled while the other is copied"""
THREADS = 4


class _Lane:
    """One thread's buffers and stream. On the CPU, for tests, copies are done at once."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.device = device
        self._stream = torch.cuda.Stream(device) if on_gpu else None
        self._buffers = [torch.empty(PIECE, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(BUFFERS)]
        self._copied: list[torch.cuda.Event | None] = [None] * BUFFERS
        self._next = 0

    @contextlib.contextmanager
    def _queue(self) -> Iterator[None]:
        with torch.inference_mode(False), torch.no_grad():
            if self._stream is None:
                yield
            else:
                with torch.cuda.stream(self._stream):
                    yield

    def send(self, source: Tensor, target: Tensor) -> Tensor:
        """Copies and converts in stream order: bool [], whether all values that arrive are finite."""
        arrived, given = target.view(-1), source.reshape(-1)
        step = PIECE // max(source.element_size(), 1)
        bounds: list[Tensor] = []
        for start in range(0, given.numel(), step):
            piece, place = given[start : start + step], arrived[start : start + step]
            with self._queue():
                self._copy(piece, place)
                bounds += torch.aminmax(place)
        with self._queue():
            if not bounds:
                return torch.ones((), dtype=torch.bool, device=self.device)
            return torch.stack(bounds).isfinite().all()

    def _copy(self, piece: Tensor, place: Tensor) -> None:
        index = self._next
        self._next = (index + 1) % BUFFERS
        copied = self._copied[index]
        if copied is not None:
            copied.synchronize()
        buffer = self._buffers[index][: piece.numel() * piece.element_size()].view(piece.dtype)
        buffer.copy_(piece)
        if piece.dtype == place.dtype:
            place.copy_(buffer, non_blocking=True)
        else:
            place.copy_(buffer.to(self.device, non_blocking=True))
        if self._stream is not None:
            self._copied[index] = self._stream.record_event()


def upload(
    targets: Sequence[Tensor],
    read: Callable[[int], Tensor],
    device: torch.device,
    *,
    done: Callable[[int], None] = lambda index: None,
) -> list[int]:
    """Copies the host tensor read(i) to targets[i] on the device, for every i, converting to its dtype. Returns, when
    all are there, the indices of those that have values which are not finite. done: told when source i was read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # a target's memory may still be in use on the current stream
    own = threading.local()

    def send(index: int) -> Tensor:
        if not hasattr(own, "lane"):
            own.lane = _Lane(device)
        lane: _Lane = own.lane
        finite = lane.send(read(index), targets[index])
        done(index)
        return finite

    with ThreadPoolExecutor(max_workers=THREADS) as pool:
        finite = list(pool.map(send, range(len(targets))))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    good: list[bool] = torch.stack(finite).tolist() if finite else []
    return [i for i, passed in enumerate(good) if not passed]
