"""`host_rows`: the rows of a table that stays in host memory."""

import pytest
import torch

from qwen3tts.model.talker import host_rows


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("count", [0, 1, 37])
def test_are_those_that_torch_looks_up(dtype: torch.dtype, count: int, seed: int) -> None:
    """Bit for bit, with repeated and unsorted ids, of a parameter, inside inference mode as outside."""
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)
    table = torch.nn.Parameter(torch.randn(101, 13, generator=generator).to(dtype))
    ids = torch.randint(101, (count,), generator=generator)
    for inference in (False, True):
        with torch.inference_mode(inference):
            rows = host_rows(table, ids, pin=False)
            assert rows.dtype == dtype
            assert rows.shape == (count, 13)
            assert torch.equal(rows.view(torch.uint8), table.detach()[ids].view(torch.uint8))


def test_refuses_an_id_past_the_end() -> None:
    with pytest.raises(IndexError):
        host_rows(torch.zeros(5, 3), torch.tensor([1, 5]), pin=False)
