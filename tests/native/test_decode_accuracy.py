"""scripts/decode_accuracy.py on a small model, with plain torch in place of the official package."""

from dataclasses import replace

import decode_accuracy
import pytest
import torch
from decode_checks.drawing import DrawnTalker, draw_talker, talker_config
from decode_checks.forcing import plain_logits
from decode_checks.specification import specification_rows

WAVES = (64,)
FRAMES, SEEDS = 3, (1,)


class Rounded:
    """What the official package does beyond plain torch: its heads round their logits."""

    def __init__(self, config, dtype, error=0.0):
        self.drawn, self.dtype = draw_talker(config, dtype, torch.device("cpu")), dtype
        if error:
            self.drawn.talker.model.norm.weight.data *= 1 + error

    def logits(self, rows, codes, kept):
        mine = specification_rows(self.drawn.talker, FRAMES, SEEDS)
        plain_logits(self.drawn.talker, self.drawn.padding, mine, codes, kept)
        kept.values[:] = kept.values.to(self.dtype).float()


@pytest.mark.parametrize("error", [0.0, 0.01])
def test_the_core_is_measured_beside_the_official_package(native, monkeypatch, error):
    config = talker_config("tiny-mtp")
    thin = replace(config.transformer, num_layers=1)
    inner = replace(config.code_predictor, transformer=replace(config.code_predictor.transformer, num_layers=1))
    config = replace(config, transformer=thin, code_predictor=inner, num_code_groups=4)

    def official(drawn: DrawnTalker, preset, dtype):
        return Rounded(config, dtype, error if dtype == torch.float32 else 0.0)

    monkeypatch.setattr(decode_accuracy, "official", official)
    found = decode_accuracy.measure(native, config, "small", SEEDS, FRAMES, torch.bfloat16)
    for name in ("core", "plain", "official"):
        assert 1e-3 < found[name]["talker_rms"] < 3e-2
        assert 1e-3 < found[name]["predictor_rms"] < 3e-2
    wrong = decode_accuracy.problems(found)
    assert any("official package in fp32" in problem for problem in wrong) == bool(error)
    worse = found | {"core": found["core"] | {"talker_rms": found["official"]["talker_rms"] * 1.01}}
    assert any("talker_rms: the core" in problem for problem in decode_accuracy.problems(worse))
