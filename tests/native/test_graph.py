"""Operations under stream capture: recorded without running, and replayed on whatever the buffers hold then."""

import ctypes
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch

from qwen3tts.backends.native import Native
from qwen3tts.backends.native.rms_norm import add_rms_norm, add_rms_norm_reference, rms_norm
from qwen3tts.backends.native.skinny_product import skinny_product


@dataclass(frozen=True)
class OnStream(Native):
    """A native module whose launches go to one given stream."""

    handle: int = 0

    def stream(self):
        return self.handle


class EmulatedGraph:
    """The emulation's capture, with the face of torch.cuda.CUDAGraph."""

    def __init__(self, native):
        self.library = ctypes.CDLL(native.module.__file__)
        self.library.emulation_stream_create.restype = ctypes.c_void_p
        self.stream = ctypes.c_void_p(self.library.emulation_stream_create())
        self.native = OnStream(native.name, native.platform, native.module, native.device, handle=self.stream.value)
        self.graph, self.nodes = ctypes.c_void_p(), ctypes.c_ulonglong()

    @contextmanager
    def capture(self):
        assert self.library.emulation_begin_capture(self.stream) == 0
        yield self.native
        assert self.library.emulation_end_capture(self.stream, ctypes.byref(self.graph), ctypes.byref(self.nodes)) == 0
        assert self.nodes.value >= 1

    def replay(self):
        assert self.library.emulation_graph_launch(self.graph, self.stream) == 0

    def close(self):
        assert self.library.emulation_graph_destroy(self.graph) == 0
        assert self.library.emulation_stream_destroy(self.stream) == 0


class DeviceGraph:
    """torch's own, for a card."""

    def __init__(self, native):
        self.native, self.graph = native, torch.cuda.CUDAGraph()

    @contextmanager
    def capture(self):
        torch.cuda.synchronize(self.native.device)
        with torch.cuda.graph(self.graph):
            yield self.native

    def replay(self):
        self.graph.replay()

    def close(self):
        self.graph.reset()


@pytest.fixture
def graph(native):
    made = EmulatedGraph(native) if native.platform == "emulation" else DeviceGraph(native)
    yield made
    made.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_replay_reads_the_buffers_anew(native, graph, seed, dtype):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(dtype).to(native.device)

    x, residual, norm_weight, weight = draw(3, 515), draw(3, 515), draw(515), draw(37, 515)
    total, normed = torch.zeros_like(x), torch.zeros_like(x)
    y = torch.zeros(3, 37, dtype=dtype, device=native.device)
    skinny_product(native, add_rms_norm(native, x, residual, norm_weight, 1e-6)[1], weight)  # once outside of a capture
    with graph.capture() as capturing:
        add_rms_norm(capturing, x, residual, norm_weight, 1e-6, total_out=total, out=normed)
        skinny_product(capturing, normed, weight, out=y)
    assert not total.any(), "a capture ran what it should record"
    for _ in range(3):
        x.copy_(draw(3, 515))
        graph.replay()
        want_total, want_normed = add_rms_norm(native, x, residual, norm_weight, 1e-6)
        assert torch.equal(total, want_total)
        assert torch.equal(total, add_rms_norm_reference(x, residual, norm_weight, 1e-6)[0])
        assert torch.equal(normed, want_normed)
        assert torch.equal(y, skinny_product(native, want_normed, weight))


def test_a_graph_may_feed_itself(native, graph, seed):
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(seed)).to(native.device)
    weight = torch.full((64,), 1.5, device=native.device)
    want = x.clone()
    rms_norm(native, x.clone(), weight, 1e-6)
    with graph.capture() as capturing:
        rms_norm(capturing, x, weight, 1e-6, out=x)
    for _ in range(4):
        graph.replay()
        want = rms_norm(native, want, weight, 1e-6)
    assert torch.equal(x, want)
