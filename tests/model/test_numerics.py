"""The scoped arithmetic: exact inside, and the process's own settings untouched after."""

import threading

import pytest
import torch

from qwen3tts.model.numerics import exact_arithmetic

CPU = torch.device("cpu")


def switches():
    matmul = torch.backends.cuda.matmul
    return (
        getattr(matmul, "fp32_precision", None),
        torch.get_float32_matmul_precision(),
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_fp16_reduced_precision_reduction,
    )


@pytest.fixture
def loose():
    """The settings an application might use."""
    before = torch.get_float32_matmul_precision()
    bf16 = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    torch.set_float32_matmul_precision("medium")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    yield switches()
    torch.set_float32_matmul_precision(before)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = bf16


def test_settings_are_exact_inside_and_restored(loose):
    with exact_arithmetic(CPU):
        assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        assert not torch.is_grad_enabled()
        assert switches()[0] in (None, "ieee")
        with exact_arithmetic(CPU):
            pass
        assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    assert switches() == loose


def test_settings_are_restored_after_an_error(loose):
    with pytest.raises(KeyError), exact_arithmetic(CPU):
        raise KeyError
    assert switches() == loose


def test_overlapping_threads_restore_once(loose):
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with exact_arithmetic(CPU):
            inside.set()
            assert leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(30)
    with exact_arithmetic(CPU):
        pass
    assert switches() != loose, "the other thread is still inside"
    leave.set()
    thread.join()
    assert switches() == loose


def test_products_are_exact_under_loose_settings(loose, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(64, 256, generator=generator), torch.randn(256, 64, generator=generator)
    with exact_arithmetic(CPU), torch.autocast("cpu", enabled=False):
        error = (a @ b - a.double() @ b.double()).abs().max()
    assert float(error) < 1e-4
    with torch.autocast("cpu", dtype=torch.bfloat16), exact_arithmetic(CPU):
        assert (a @ b).dtype == torch.float32
