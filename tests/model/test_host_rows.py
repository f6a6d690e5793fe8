"""Rows of a table that stays in host memory, and what goes to the device beside them."""

import numpy as np
import pytest
import torch

from qwen3tts.model.talker import ROWS_ALIGNED, host_rows, uploaded_rows

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("count", "numbers"), [(0, 0), (1, 0), (37, 3), (0, 5), (2, 64), (37, 65)])
def test_are_those_that_torch_looks_up(dtype: torch.dtype, count: int, numbers: int, seed: int) -> None:
    """Bit for bit, with repeated and unsorted ids, of a parameter, inside inference mode as outside."""
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)
    table = torch.nn.Parameter(torch.randn(101, 13, generator=generator).to(dtype))
    ids = torch.randint(101, (count,), generator=generator)
    others = torch.randint(-(2**62), 2**62, (numbers,), generator=generator)
    for inference in (False, True):
        with torch.inference_mode(inference):
            rows, sent = uploaded_rows(table, ids.numpy(), others.numpy(), CPU)
            assert rows.dtype == dtype
            assert rows.shape == (count, 13)
            assert rows.storage_offset() * rows.element_size() % ROWS_ALIGNED == 0
            assert torch.equal(rows.view(torch.uint8), table.detach()[ids].view(torch.uint8))
            assert torch.equal(sent, others)


@pytest.mark.parametrize("ids", [(1, 5), (-1, 0)])
def test_refuses_an_id_that_is_no_row(ids: tuple[int, ...]) -> None:
    with pytest.raises(IndexError, match="5 rows"):
        host_rows(torch.zeros(5, 3), np.array(ids), np.zeros((2, 12), np.uint8))
