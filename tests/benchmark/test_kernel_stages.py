"""The stages of replayed frames, told from lists of kernels in the order in which the core launches them."""

import random
from types import SimpleNamespace

import pytest
from torch._C._autograd import DeviceType

from qwen3tts.benchmark.kernel_stages import Kernel, frames_of, kernels_of, own_times, short_name, stages_of, summed
from qwen3tts.errors import BackendError

LINEAR = "void qwen3tts::(anonymous namespace)::linear_mma_kernel<__nv_bfloat16, 1>(LinearArguments, int, int)"
SAMPLE = "void qwen3tts::sample_kernel<8>(SamplerArguments, int)"
ATTEND = "void qwen3tts::predictor_kernel<__nv_bfloat16, 128>(PredictorAttentionArguments)"
BEGIN, SUM, END = "qwen3tts::begin_kernel(int)", "void qwen3tts::sum_kernel<float>(int)", "qwen3tts::end_kernel(int)"
LAYER = [LINEAR, ATTEND, LINEAR, LINEAR, LINEAR]


def frame(passes=3, layers=2, talker_layers=4, projected=False):
    """Kernels' names as csrc/common/decode/decoder.cpp launches them, and their stages."""
    names, stages = [BEGIN], ["predictor.begin"]
    if projected:
        names.append(LINEAR)
        stages.append("predictor.projection")
    for _ in range(passes):
        names += [*LAYER * layers, LINEAR, SAMPLE]
        stages += [*["predictor.stack"] * 5 * layers, "predictor.logits", "predictor.sampling"]
    names += [SUM, *LAYER * talker_layers, LINEAR, SAMPLE, END]
    stages += ["step_input", *["talker.stack"] * 5 * talker_layers, "talker.logits", "talker.sampling", "talker.end"]
    return names, stages


def timed(names, rng, overlap=3):
    """Kernels that end one after another, each starting up to `overlap` kernels ahead of its turn; their own times."""
    kernels, own, ends = [], [], [0.0]
    for name in names:
        own.append(rng.uniform(0.5, 9))
        start = ends[-min(len(ends), rng.randint(1, overlap))]
        ends.append(ends[-1] + own[-1])
        kernels.append(Kernel(name, start, ends[-1]))
    return kernels, own


@pytest.mark.parametrize("projected", [False, True])
def test_stages_by_name_and_order(projected):
    names, stages = frame(projected=projected)
    assert stages_of(names, projected) == stages


def test_one_kernel_for_the_whole_predictor():
    whole = "qwen3tts::(anonymous namespace)::predictor_kernel(qwen3tts::PersistentArguments)"
    names = [BEGIN, whole, SUM, *LAYER, LINEAR, SAMPLE, END]
    found = stages_of(names, projected=False)
    assert found[:3] == ["predictor.begin", "predictor.one kernel", "step_input"]
    with pytest.raises(BackendError, match="0 of the kind"):
        stages_of([BEGIN, LINEAR, END], projected=False)


@pytest.mark.parametrize("projected", [False, True])
def test_own_times_add_up_to_the_frame(seed, projected):
    rng = random.Random(seed)
    names, stages = frame(passes=15, layers=5, talker_layers=28, projected=projected)
    kernels, own = timed([LINEAR, SAMPLE, *names * 4, BEGIN, LINEAR], rng)
    assert own_times(kernels)[1:] == pytest.approx(own[1:])
    assert [len(part) for part in frames_of(kernels)] == [len(names)] * 4
    found = summed(kernels, projected)
    assert (found["frames"], found["launches_per_frame"]) == (4, len(names))
    body = own[2 : 2 + 4 * len(names)]
    for part, key in (("predictor", "predictor_ms"), ("talker", "talker_ms")):
        for stage in {name for name in stages if name.startswith(part)}:
            wanted = sum(t for t, name in zip(body, stages * 4, strict=True) if name == stage) / 4e3
            assert found[key][stage.split(".")[1]] == pytest.approx(wanted, abs=1e-3)
        assert found["ms_per_frame"][part] == pytest.approx(sum(found[key].values()), abs=1e-3)
    assert found["ms_per_frame"]["frame"] == pytest.approx(sum(body) / 4e3, abs=1e-3)
    assert sum(kind["ms_per_frame"] for kind in found["kernels"]) == pytest.approx(sum(body) / 4e3, abs=1e-2)
    assert sum(kind["launches_per_frame"] for kind in found["kernels"]) == pytest.approx(len(names))


def test_nothing_to_add_up():
    with pytest.raises(BackendError, match="No whole frame is among the 2 kernels"):
        summed(timed([BEGIN, LINEAR], random.Random(0))[0], projected=False)
    assert own_times([]) == []


def test_kernels_among_a_profilers_events():
    def event(name, start, end, kind=DeviceType.CUDA):
        return SimpleNamespace(name=name, device_type=kind, time_range=SimpleNamespace(start=start, end=end))

    events = [
        event(SAMPLE, 5, 9), event(BEGIN, 0, 2), event("Memcpy DtoH (Device -> Pinned)", 9, 10),
        event("cudaGraphLaunch", 0, 1, DeviceType.CPU), event("Memset (Device)", 0, 1), event(LINEAR, 1, 6),
    ]  # fmt: skip
    assert [kernel.name for kernel in kernels_of(events)] == [BEGIN, LINEAR, SAMPLE]
    assert kernels_of(None) == []


def test_names_for_people():
    assert short_name(SAMPLE) == "sample_kernel<8>"
    assert short_name(LINEAR) == "linear_mma_kernel<__nv_bfloat16, 1>"
