"""The plain decoder makes the padding row itself, when it is first needed."""

import pytest
import torch

import qwen3tts
from qwen3tts import GenerateOptions
from qwen3tts.backends.torch.frame_decoder import TorchFrameDecoder
from qwen3tts.model.numerics import exact_arithmetic

OPTIONS = GenerateOptions(max_frames=4, seed=11)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_made_once_and_speaks_the_same(tiny_checkpoint, dtype):
    with qwen3tts.load(tiny_checkpoint(eos_gain=0.0), backend="cpu", dtype=dtype) as tts:
        runtime, made = tts.engine.runtime, []
        before = tts.generate("Good morning.", "ryan", options=OPTIONS, decode=False)

        def padding():
            made.append(torch.is_inference_mode_enabled())
            return runtime.talker.embed_text(torch.tensor([runtime.config.tts_pad_id]))[0]

        plain = runtime.frames
        runtime.frames = late = TorchFrameDecoder(
            runtime.talker, padding, slots=2, max_positions=plain.max_positions, kv_bytes=None
        )
        assert made == []
        for _ in range(2):
            after = tts.generate(["Good morning."] * 2, "ryan", options=OPTIONS, decode=False)
            assert [speech.codes.tolist() for speech in after] == [before.codes.tolist()] * 2
        assert made == [True]
        with exact_arithmetic(tts.device):
            assert torch.equal(late._made_pad, plain._pad)
        late.close()
        assert late._made_pad is None
