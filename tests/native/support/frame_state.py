"""The state of the rows of a frame (csrc/common/decode/frame.h) in tensors, for tests of the kernels that share it."""

import numpy as np
import torch

from qwen3tts.backends.native.sampler import SamplerRow, pack_rows
from qwen3tts.model.sampling import SamplingParams

POISON = 77
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
RUNNING, EOS, LENGTH = 0, 1, 2


class State:
    """FrameState of csrc/common/decode/frame.h in tensors, with values that no kernel would leave."""

    def __init__(self, native, slots, groups, vocab, hidden, dtype):
        self.native, self.slots, self.groups, self.vocab, self.hidden_size = native, slots, groups, vocab, hidden
        self.dtype = dtype
        for name in ("frame", "position", "finished", "status", "limit", "max_frames", "text_rows"):
            setattr(self, name, self.ints(slots))
        self.codes = self.ints(slots, groups)
        self.seen = torch.full((slots, vocab), True, device=native.device)
        self.hidden = self.values(slots, hidden)
        self.text = torch.zeros(slots, dtype=torch.int64, device=native.device)
        default = SamplerRow(SamplingParams(False, 1.0, 0, 1.0), 0)
        self.talker = pack_rows([default] * slots, native.device)
        self.predictor = self.talker.clone()

    def ints(self, *shape):
        return torch.full(shape, POISON, dtype=torch.int32, device=self.native.device)

    def values(self, *shape):
        return torch.full(shape, POISON, dtype=self.dtype, device=self.native.device)

    def fields(self):
        names = (
            "frame", "position", "finished", "codes", "status", "seen", "hidden", "limit", "max_frames", "text",
            "text_rows", "talker", "predictor",
        )  # fmt: skip
        pointers = {name: getattr(self, name).data_ptr() for name in names}
        return pointers | {name: getattr(self, name) for name in ("slots", "groups", "vocab", "hidden_size")}

    def call(self, operation, stream=None, **arguments):
        fields = {name: v.data_ptr() if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}
        fields |= {"state": self.fields(), "dtype": CODES[self.dtype]}
        getattr(self.native.module, operation)(fields, self.native.stream() if stream is None else stream)

    def snapshot(self):
        return [t.clone() for t in vars(self).values() if isinstance(t, torch.Tensor)]


def normal(rng, native, dtype, *shape):
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(native.device, dtype)


def draw(rng, native, low, high, *shape):
    return torch.from_numpy(rng.integers(low, high, shape).astype(np.int32)).to(native.device)
