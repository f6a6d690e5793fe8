"""The official package's talker and code predictor on given weights and codes. Needs the official package `qwen_tts`
and the transformers that it works with; of what else it imports, scripts/parity/stubs stands in for some."""

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decode_checks.drawing import DrawnTalker
from decode_checks.forcing import KeptLogits
from qwen3tts.model.talker import Talker
from qwen3tts.runtime.protocols import RowRequest
from qwen3tts.synthetic.configs import REAL_TEXT_IDS, build_configs

STUBS = Path(__file__).resolve().parents[1] / "parity" / "stubs"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The package prints notices when it is imported."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


class OfficialTalker:
    """Qwen3TTSTalkerForConditionalGeneration with the weights of one of ours."""

    def __init__(self, drawn: DrawnTalker, preset: str, dtype: torch.dtype) -> None:
        if str(STUBS) not in sys.path:
            sys.path.append(str(STUBS))
        with _quiet():
            from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSTalkerConfig
            from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSTalkerForConditionalGeneration
        config = build_configs(preset, "custom_voice", REAL_TEXT_IDS, "4.57.2")[0]["talker_config"]
        config = _adapted(config, drawn.talker) | {"text_vocab_size": 8}  # of a table that is not read
        with torch.device(drawn.talker.device), _quiet():
            model: Any = Qwen3TTSTalkerForConditionalGeneration._from_config(
                Qwen3TTSTalkerConfig(**config), dtype=dtype, attn_implementation="sdpa"
            )
        weights = drawn.talker.state_dict()
        weights["model.text_embedding.weight"] = weights["model.text_embedding.weight"][:8]
        model.load_state_dict(weights)  # into the dtype of each; every value exists in bf16
        self.model, self.dtype = model.eval(), dtype
        self.padding = drawn.padding.to(dtype)

    def logits(self, rows: Sequence[RowRequest], codes: Sequence[Tensor], kept: KeptLogits) -> None:
        """Of all picks of the rows, on given codes [frames, groups]; a row's positions all at once."""
        with torch.inference_mode():
            for number, (row, made) in enumerate(zip(rows, codes, strict=True)):
                self._row(number, row, made.to(self.padding.device), kept)

    def _row(self, number: int, row: RowRequest, codes: Tensor, kept: KeptLogits) -> None:
        model, prompt = self.model, row.prefill.to(self.dtype)
        tables = [model.get_input_embeddings(), *model.code_predictor.get_input_embeddings()]
        embedded = torch.stack([table(codes[:, i]) for i, table in enumerate(tables)], 1)
        text = row.trailing.to(self.dtype)[: len(codes)]
        text = torch.cat((text, self.padding.expand(len(codes) - len(text), -1)))
        x = torch.cat((prompt, embedded.sum(1) + text))
        hidden = model.model(inputs_embeds=x[None], use_cache=False).last_hidden_state[0, len(prompt) - 1 : -1]
        first = model.codec_head(hidden)
        inputs = torch.cat((hidden[:, None], embedded[:, :-1]), 1)
        others = model.code_predictor.forward_finetune(inputs_embeds=inputs, use_cache=False).logits
        for frame in range(len(codes)):
            kept.put(frame, number, 0, first[frame])
            for book in range(1, len(tables)):
                kept.put(frame, number, book, others[frame, book - 1])


def _adapted(config: dict[str, Any], talker: Talker) -> dict[str, Any]:
    """A preset's config with the layers and codes of a talker that has fewer."""
    layers, inner = talker.config.transformer.num_layers, talker.config.code_predictor.transformer.num_layers
    groups = talker.config.num_code_groups
    predictor = config["code_predictor_config"] | {
        "num_hidden_layers": inner, "layer_types": ["full_attention"] * inner, "num_code_groups": groups,
    }  # fmt: skip
    return config | {"num_hidden_layers": layers, "num_code_groups": groups, "code_predictor_config": predictor}
