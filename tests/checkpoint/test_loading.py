"""`load_module`: values, dtypes, what is refused, and how much memory it takes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from qwen3tts.checkpoint import TensorReader, load_module, open_checkpoint
from qwen3tts.checkpoint import loading as loading_module
from qwen3tts.errors import WeightsError

CPU = torch.device("cpu")


def module_of(tensors: dict[str, tuple[int, ...]]) -> torch.nn.Module:
    """A module on the meta device with these parameters."""
    root = torch.nn.Module()
    for key, shape in tensors.items():
        *folders, name = key.split(".")
        module = root
        for folder in folders:
            if folder not in dict(module.named_children()):
                module.add_module(folder, torch.nn.Module())
            module = module.get_submodule(folder)
        module.register_parameter(name, torch.nn.Parameter(torch.empty(shape, device="meta")))
    return root


def reader_of(folder: Path, tensors: dict[str, torch.Tensor]) -> TensorReader:
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    return TensorReader(folder)


def load(tensors: dict[str, torch.Tensor], folder: Path, target: torch.dtype) -> dict[str, torch.Tensor]:
    module = module_of({key: tuple(tensor.shape) for key, tensor in tensors.items()})
    with reader_of(folder, tensors) as reader:
        load_module(module, reader, prefix="", device=CPU, dtype_of=lambda key, stored: target)
    return dict(module.named_parameters())


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16, torch.float16])
def test_every_pair_of_dtypes(tmp_path: Path, stored: torch.dtype, target: torch.dtype, seed: int) -> None:
    """Equal to torch's own conversion, also where a tensor is longer than a block and not a multiple of it."""
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)
    sizes = {"a.long": (loading_module.BLOCK * 2 + 17,), "a.b.c": (3, 5, 7), "one": (1,), "none": (0, 3), "s": ()}
    tensors = {key: torch.randn(size, generator=generator).to(stored) for key, size in sizes.items()}
    loaded = load(tensors, tmp_path, target)
    for key, tensor in tensors.items():
        assert loaded[key].dtype == target
        assert not loaded[key].requires_grad
        assert torch.equal(loaded[key], tensor.to(target))


def test_tensors_in_one_allocation(tmp_path: Path, seed: int) -> None:
    """Chosen by key and stored dtype: equal to the others' loading, aligned, each with changes counted for itself."""
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)
    sizes = {"a.head": (7, 3), "b.head": (130, 5), "c.head": (), "none.head": (0, 4), "d.head": (9,), "body": (6, 6)}
    sizes |= {"e.tail": (5, 2), "f.tail": (11,)}
    tensors = {key: torch.randn(size, generator=generator).bfloat16() for key, size in sizes.items()}
    tensors["d.head"] = tensors["d.head"].float()
    names = {key: None if key == "body" else "first" for key in sizes} | {"e.tail": "second", "f.tail": "second"}
    module = module_of(sizes)
    with reader_of(tmp_path, tensors) as reader:
        load_module(
            module, reader, prefix="", device=CPU, dtype_of=lambda key, stored: torch.float32,
            together=lambda key, stored: names[key] if stored == torch.bfloat16 else None,
        )  # fmt: skip
    loaded = dict(module.named_parameters())
    for key, tensor in tensors.items():
        assert torch.equal(loaded[key], tensor.float())
    joined = [loaded[key] for key in ("a.head", "b.head", "c.head")]
    assert len({tensor.untyped_storage().data_ptr() for tensor in joined}) == 1
    apart = ("a.head", "d.head", "e.tail", "body")
    assert len({loaded[key].untyped_storage().data_ptr() for key in apart}) == 4
    assert loaded["e.tail"].untyped_storage().data_ptr() == loaded["f.tail"].untyped_storage().data_ptr()
    assert all(tensor.storage_offset() * 4 % loading_module.ALIGNED == 0 for tensor in joined)
    before = joined[0]._version
    joined[1].add_(1)
    assert joined[0]._version == before
    assert torch.equal(joined[0], tensors["a.head"].float())


def test_whole_checkpoint_with_prefix_and_rule(tiny_checkpoint: Callable[..., Path]) -> None:
    with open_checkpoint(tiny_checkpoint()).model_weights() as reader:
        keys = [key for key in reader if key.startswith("talker.")]
        module = module_of({key.removeprefix("talker."): reader.shape(key) for key in keys})

        def dtype_of(key: str, stored: torch.dtype) -> torch.dtype:
            return torch.float32 if "norm" in key else stored

        load_module(module, reader, prefix="talker.", device=CPU, dtype_of=dtype_of)
        loaded = dict(module.named_parameters(prefix="talker"))
        assert set(loaded) == set(keys)
        for key in keys:
            assert loaded[key].dtype == (torch.float32 if "norm" in key else torch.bfloat16)
            assert torch.equal(loaded[key], reader.read(key).to(loaded[key].dtype))


def test_buffers_and_tied_weights(tmp_path: Path) -> None:
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
        module.register_buffer("kept", torch.empty(2))
        module.register_buffer("computed", torch.empty(2), persistent=False)
    module[1].weight = module[0].weight
    tensors = {"0.weight": torch.randn(3, 3), "kept": torch.tensor([0.0, 2.0])}
    with reader_of(tmp_path, tensors) as reader:
        load_module(module, reader, prefix="", device=CPU, dtype_of=lambda key, stored: stored)
    assert module[0].weight is module[1].weight
    assert torch.equal(module[0].weight, tensors["0.weight"])
    assert torch.equal(module.get_buffer("kept"), tensors["kept"])
    assert not isinstance(module.get_buffer("kept"), torch.nn.Parameter)
    assert module.get_buffer("computed").device.type == "meta"  # its owner's business


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite(tmp_path: Path, stored: torch.dtype, value: float, seed: int) -> None:
    print(f"seed {seed}")
    size = loading_module.BLOCK + 999
    for at in (0, seed % size, size - 1):
        tensor = torch.zeros(size, dtype=stored)
        tensor[at] = value
        with pytest.raises(WeightsError, match=r"'x\.weight' has weights that are NaN or infinite"):
            load({"ok": torch.ones(4), "x.weight": tensor}, tmp_path, torch.float32)


@pytest.mark.parametrize("value", [65536.0, -70000.0, 1e30])
def test_overflow_in_half_precision(tmp_path: Path, value: float) -> None:
    tensors = {"x": torch.tensor([1.0, value])}
    with pytest.raises(WeightsError, match=r"'x' has weights up to .*, which overflow torch\.float16"):
        load(tensors, tmp_path, torch.float16)
    assert torch.equal(load(tensors, tmp_path, torch.bfloat16)["x"], tensors["x"].bfloat16())
    edge = {"x": torch.tensor([65504.0, -65519.0])}
    assert torch.equal(load(edge, tmp_path, torch.float16)["x"], edge["x"].half())


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 65536.0])
def test_other_devices_are_checked_from_the_source(tmp_path: Path, value: float) -> None:
    """What lies on another device is not read back; the meta device stands for one."""
    size = loading_module.BLOCK + 7
    tensors = {"x": torch.ones(size), "y": torch.ones(size)}
    tensors["y"][-2] = value
    module = module_of({"x": (size,), "y": (size,)})
    with reader_of(tmp_path, tensors) as reader, pytest.raises(WeightsError, match="'y' has weights"):
        load_module(module, reader, prefix="", device=torch.device("meta"), dtype_of=lambda key, stored: torch.float16)


def test_what_stays_in_host_memory(tmp_path: Path) -> None:
    """The meta device stands for a GPU."""
    tensors = {"p.x": torch.arange(3.0), "p.y": torch.ones(5), "x": torch.zeros(3)}
    module, meta = module_of({"x": (3,), "y": (5,)}), torch.device("meta")
    with reader_of(tmp_path, tensors) as reader:
        arguments = {"prefix": "p.", "device": meta, "dtype_of": lambda key, stored: stored, "on_host": {"x"}}
        load_module(module, reader, **arguments)
        kept = module.x
        assert (kept.device.type, module.y.device.type) == ("cpu", "meta")
        assert torch.equal(kept, tensors["p.x"])
        with torch.no_grad():
            kept.zero_()
        loading_module.reload_parameters(module, reader, names=["x"], **arguments)
        assert module.x is kept
        assert torch.equal(kept, tensors["p.x"])


def test_missing_and_other_shape(tmp_path: Path) -> None:
    with reader_of(tmp_path, {"a.weight": torch.ones(2, 3)}) as reader:
        for wanted, message in (
            ({"a.weight": (2, 3), "a.bias": (2,)}, "has no tensor 'a.bias'"),
            ({"a.weight": (3, 2)}, r"'a.weight' is \[2, 3\], expected \[3, 2\]"),
        ):
            with pytest.raises(WeightsError, match=message):
                load_module(module_of(wanted), reader, prefix="", device=CPU, dtype_of=lambda key, stored: stored)


PROBE = """
import sys, threading
import torch
from qwen3tts.checkpoint import load_module, model_keys, open_checkpoint
from test_loading import module_of

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

checkpoint, dtype = open_checkpoint(sys.argv[1]), getattr(torch, sys.argv[2])
module = module_of(dict(model_keys(checkpoint.config)))
torch.ones(8).bfloat16().float().aminmax()
baseline, peak, done = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not done.is_set():
        peak = max(peak, anonymous())
        done.wait(0.001)

thread = threading.Thread(target=watch)
thread.start()
with checkpoint.model_weights() as reader:
    load_module(module, reader, prefix="", device=torch.device("cpu"), dtype_of=lambda key, stored: dtype)
done.set()
thread.join()
peak = max(peak, anonymous())
print(peak - baseline, sum(p.numel() * p.element_size() for p in module.parameters()))
"""


@pytest.fixture(scope="module")
def wide_checkpoint(tiny_checkpoint: Callable[..., Path]) -> Path:
    """150 MB in bfloat16, most of it in one tensor, like the text embedding of the real model."""
    override = {"talker_config": {"text_vocab_size": 100_000, "text_hidden_size": 512, "intermediate_size": 60_000}}
    return tiny_checkpoint("custom_voice", override={"config": override})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_peak_memory(wide_checkpoint: Path, dtype: str) -> None:
    """Peak anonymous memory above the import's is at most 1.2 x the weights in the target dtype."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    result = subprocess.run(
        [sys.executable, "-c", PROBE, str(wide_checkpoint), dtype],
        env=os.environ | {"PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
    )
    peak, weights = map(int, result.stdout.split())
    print(f"{dtype}: peak {peak / 1e6:.1f} MB, weights {weights / 1e6:.1f} MB, {peak / weights:.3f}")
    assert weights > 140e6
    assert 0.95 * weights < peak < 1.2 * weights
