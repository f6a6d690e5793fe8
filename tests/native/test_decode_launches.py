"""When replays are launched and read: against a device of the host's imagination that works through its queue late."""

import random
from types import SimpleNamespace

import pytest
import torch

from qwen3tts.backends.native.decode.capture import Captured
from qwen3tts.backends.native.decode.launches import PREDICTOR_STUCK, REPLAYS_IN_FLIGHT, Launches, Row
from qwen3tts.errors import BackendError, NumericsError
from qwen3tts.runtime.protocols import Slot

GROUPS = 2


class Device:
    """Core and state in one. Rows end after `lives` frames. What is launched runs when it is waited for, not before."""

    def __init__(self, lives, broken_at=None):
        self.lives, self.broken_at = lives, broken_at
        self.frame, self.limit = [0] * len(lives), [0] * len(lives)
        self.device, self.hidden = torch.device("cpu"), torch.zeros(0)
        self.queue, self.mirrors, self.launched, self.deepest, self.cleared = [], {}, [], 0, 0
        self.stuck = False

    def upload(self):
        assert not self.queue

    def wait_for_upload(self):
        """Copies are there at once."""

    def prefill(self, fields, stream):
        self.launched.append(("prompts", stream))

    def clear_exchange(self, stream):
        self.cleared += 1

    def replay(self, rows, frames, stream):
        self.launched.append((rows, frames))
        self.queue.append((rows, frames, None))

    def frames(self, rows, frames, stream):
        self.launched.append((rows, -frames))
        self.queue.append((rows, frames, None))

    def fetch(self, mirror, frames):
        if self.queue and self.queue[-1][2] is None:
            self.queue[-1] = (*self.queue[-1][:2], mirror)
        else:
            self.queue.append((0, 0, mirror))
        self.deepest = max(self.deepest, len(self.queue))

    def wait(self, mirror):
        while any(to == mirror for *_, to in self.queue):  # as an event: what was recorded last
            rows, frames, to = self.queue.pop(0)
            codes = torch.full((frames, len(self.lives), GROUPS), -1)
            for i in range(frames):
                for row in range(min(rows, len(self.lives))):
                    if self.frame[row] < min(self.limit[row], self.lives[row]):
                        codes[i, row] = 100 * row + self.frame[row]
                        self.frame[row] += 1
            ended = [int(made >= life) for made, life in zip(self.frame, self.lives, strict=True)]
            broken = [int(self.broken_at is not None and made > self.broken_at) for made in self.frame]
            broken = [PREDICTOR_STUCK] * len(broken) if self.stuck else broken
            self.mirrors[to] = {"frame": list(self.frame), "finished": ended, "status": broken, "codes": codes}

    def counter(self, name, mirror):
        return self.mirrors[mirror][name]

    def fetched_codes(self, mirror, places, frames):
        return self.mirrors[mirror]["codes"][:frames, places]


def launches(device, depth, graphs=True):
    rows = (1, 2, 4, 8)
    captured = tuple(Captured(count, frames, 1, 0.0, 0) for count in rows for frames in {1, depth} if graphs)
    made = Launches(SimpleNamespace(stream=lambda: 0), device, rows, depth)
    made.use(device, torch.zeros(24), captured)
    return made


def rows_of(device, **changes):
    return [Row(Slot(i), i, 1000, torch.zeros(0), True, **changes) for i in range(len(device.lives))]


def ask(queue, device, rows, frames):
    limits = {row: row.limit(frames) for row in rows}
    device.limit = [limits.get(row, 0) for row in rows]
    before = [row.frames for row in rows]
    made = torch.cat([torch.zeros(0, len(rows), GROUPS, dtype=torch.int64), *queue.frames(rows, limits)])
    assert not queue.unread
    return [made[: row.frames - start, i, 0].tolist() for i, (row, start) in enumerate(zip(rows, before, strict=True))]


def test_codes_in_order_whatever_is_asked(seed):
    rng = random.Random(seed)
    for _ in range(40):
        device = Device([rng.randint(0, 30) for _ in range(rng.randint(1, 8))])
        rows = rows_of(device)
        queue, got = launches(device, rng.choice([1, 2, 4, 7])), [[] for _ in rows]
        while any(row.finished is None for row in rows):
            for codes, more in zip(got, ask(queue, device, rows, rng.randint(1, 20)), strict=True):
                codes += more
        assert got == [[100 * i + frame for frame in range(life)] for i, life in enumerate(device.lives)]
        assert {row.finished for row in rows} == {"eos"}
        assert device.deepest <= REPLAYS_IN_FLIGHT


def test_replays_where_they_fit_and_single_frames_for_the_rest():
    device = Device([1000] * 3)
    ask(launches(device, 4), device, rows_of(device), 11)
    assert device.launched == [(4, 4), (4, 4), (4, 1), (4, 1), (4, 1)]
    assert device.deepest == REPLAYS_IN_FLIGHT
    device = Device([1000])
    ask(launches(device, 4, graphs=False), device, rows_of(device), 5)
    assert device.launched == [(1, -4), (1, -1)]


@pytest.mark.parametrize("life", [1, 4, 5, 8, 9, 31, 32])
def test_an_end_is_seen_one_replay_late(life):
    device = Device([life])
    (codes,) = ask(launches(device, 4), device, rows_of(device), 32)
    assert codes == list(range(life))
    assert len(device.launched) == min(8, -(-life // 4) + REPLAYS_IN_FLIGHT - 1)


def test_fewer_rows_are_launched_once_the_last_ones_have_ended():
    device = Device([1000, 1000, 2, 6])
    ask(launches(device, 2), device, rows_of(device), 12)
    assert device.launched == [(4, 2)] * 4 + [(2, 2)] * 2


def test_logits_that_are_not_finite_end_the_call_when_nothing_runs_any_more():
    device = Device([1000, 1000], broken_at=5)
    rows = rows_of(device)
    queue = launches(device, 4)
    with pytest.raises(NumericsError, match="not finite"):
        ask(queue, device, rows, 32)
    assert not queue.unread
    assert not device.queue
    assert len(device.launched) == 3
    assert [row.frames for row in rows] == [12, 12]


def test_what_an_interrupt_leaves_is_caught_up_with(monkeypatch):
    device = Device([1000])
    rows = rows_of(device)
    queue = launches(device, 4)

    def interrupt(mirror):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(device, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ask(queue, device, rows, 32)
    assert queue.unread
    assert rows[0].frames == 0
    queue.catch_up(rows)
    assert not queue.unread
    assert device.cleared == 1  # whether blocks were stuck is not known
    assert rows[0].frames == 4 * REPLAYS_IN_FLIGHT
    assert ask(queue, device, rows, 3) == [[8, 9, 10]]
    launched = len(device.launched)
    queue.catch_up(rows)
    assert len(device.launched) == launched
    assert device.cleared == 1


def test_blocks_that_were_stuck_are_told_and_cleared_though_an_interrupt_comes_between(monkeypatch):
    device = Device([1000])
    rows, queue = rows_of(device), launches(device, 4)
    device.stuck = True
    with monkeypatch.context() as patch:

        def interrupt(stream):
            raise KeyboardInterrupt

        patch.setattr(device, "clear_exchange", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ask(queue, device, rows, 4)
    assert (queue.unread, device.cleared) == (False, 0)
    queue.catch_up([])  # the row was released meanwhile
    assert device.cleared == 1
    with pytest.raises(BackendError, match="waited for each other in vain"):
        ask(queue, device, rows, 4)
    assert device.cleared == 2
    device.stuck = False
    assert len(ask(queue, device, rows, 4)[0]) == 4


def test_prompts_that_nobody_waits_for_are_waited_for_on_another_stream(monkeypatch):
    device, settled = Device([1000]), []
    rows, queue = rows_of(device), launches(device, 4)
    settle = queue.settle
    monkeypatch.setattr(queue, "settle", lambda: (settled.append(queue.native.stream()), settle()))
    queue.prefill({}, rows, wait=True)
    assert (queue.busy, queue.unread) == (False, False)
    queue.prefill({}, rows, wait=False)
    assert (queue.busy, queue.unread) == (True, False)
    queue.catch_up(rows)
    assert settled == []
    queue.native = SimpleNamespace(stream=lambda: 7)
    queue.catch_up(rows)
    assert settled == [7]
    assert not queue.busy
    queue.prefill({}, rows, wait=False)
    assert len(ask(queue, device, rows, 4)[0]) == 4
    assert not queue.busy
