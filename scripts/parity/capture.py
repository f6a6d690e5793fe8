"""Hooks around one generate call of the official package: everything between the text and the audio is taken as it is
computed, nothing is recomputed."""

import numpy as np
import torch

SAMPLES_PER_FRAME = 1920


class Capture:
    """Context manager; the hooks are undone on exit.

    Wrapped: generate of the model (token ids in, codes out), of the talker (prompt in, processed scores out) and of
    the predictor (processed scores out). The two inner ones get output_scores=True, which changes nothing else.
    Forward hooks on codec_head and the 15 lm_heads take the raw logits of the last position."""

    def __init__(self, model):
        self.model, self.talker, self.predictor = model, model.talker, model.talker.code_predictor
        self.talker_logits, self.predictor_logits, self.predictor_scores = [], [], []

    def __enter__(self):
        self._wrap(self.model, self._model_generate)
        self._wrap(self.talker, self._talker_generate)
        self._wrap(self.predictor, self._predictor_generate)

        def take(store):
            return lambda module, args, out: store.append(out[:, -1].float().clone())

        self.hooks = [self.talker.codec_head.register_forward_hook(take(self.talker_logits))]
        self.hooks += [head.register_forward_hook(take(self.predictor_logits)) for head in self.predictor.lm_head]
        return self

    def __exit__(self, *exc):
        for hook in self.hooks:
            hook.remove()
        for module in (self.model, self.talker, self.predictor):
            del module.generate

    @staticmethod
    def _wrap(module, method):
        original = module.generate
        module.generate = lambda *args, **kwargs: method(original, *args, **kwargs)

    def _model_generate(self, original, **kwargs):
        self.inputs = kwargs
        self.codes, self.hidden = original(**kwargs)
        return self.codes, self.hidden

    def _talker_generate(self, original, **kwargs):
        self.prompt = kwargs
        self.result = original(**kwargs, output_scores=True)
        return self.result

    def _predictor_generate(self, original, **kwargs):
        result = original(**kwargs, output_scores=True)
        self.predictor_scores.append(torch.stack(result.scores, 1))
        return result

    def arrays(self, wavs, do_sample):
        """(arrays, info). Arrays are named NAME.ROW and cut to the row's own length."""
        self._stack()
        arrays = {"tts_pad": self.prompt["tts_pad_embed"].reshape(-1)}
        info = {"frames": [], "finish": [], "wav_samples": [], "min_gap": []}
        for r, codes in enumerate(self.codes):
            row, n = self._row(r, wavs[r], do_sample), len(codes)
            arrays |= {f"{name}.{r}": value for name, value in row.items()}
            info["frames"].append(n)
            info["finish"].append("eos" if int(row["tokens"][-1]) == self.prompt["eos_token_id"] else "length")
            info["wav_samples"].append(len(wavs[r]))
            info["min_gap"].append(None if do_sample else min_gap(row["talker_scores"], row["predictor_logits"]))
        return {name: to_numpy(value) for name, value in arrays.items()}, info

    def _stack(self):
        """[rows, frames or steps, …] from the per-call lists."""
        groups = len(self.predictor.lm_head)
        frames = [torch.stack(self.predictor_logits[i:i + groups], 1)
                  for i in range(0, len(self.predictor_logits), groups)]
        self.all_predictor_logits = torch.stack(frames, 1)
        self.all_predictor_scores = torch.stack(self.predictor_scores, 1)
        self.all_talker_logits = torch.stack(self.talker_logits, 1)
        self.all_talker_scores = torch.stack(self.result.scores, 1)

    def _row(self, r, wav, do_sample):
        n = len(self.codes[r])
        trailing, pad = self.prompt["trailing_text_hidden"][r], self.prompt["tts_pad_embed"].reshape(-1)
        while len(trailing) > 1 and torch.equal(trailing[-1], pad):  # rows that the batch was padded with
            trailing = trailing[:-1]
        row = {"text_ids": self.inputs["input_ids"][r][0],
               "prefill": self.prompt["inputs_embeds"][r][self.prompt["attention_mask"][r].bool()],
               "trailing": trailing, "codes": self.codes[r], "tokens": self.result.sequences[r, :n + 1],
               "hidden": self.hidden[r], "wav": wav,
               "talker_logits": self.all_talker_logits[r, :n + 1], "talker_scores": self.all_talker_scores[r, :n + 1],
               "predictor_logits": self.all_predictor_logits[r, :n]}
        if do_sample:
            row["predictor_scores"] = self.all_predictor_scores[r, :n]
        for name in ("instruct_ids", "ref_ids"):
            ids = (self.inputs.get(name) or {r: None})[r]
            if ids is not None:
                row[name] = ids[0]
        return row


def min_gap(*scores):
    """Smallest distance between the best and the second-best score of any greedy choice: below 1e-4 another order of
    rounding could take the other branch."""
    tops = [score.topk(2)[0] for score in scores]
    return min(float((top[..., 0] - top[..., 1]).min()) for top in tops)


def to_numpy(value):
    if torch.is_tensor(value):
        value = value.float() if value.is_floating_point() else value  # numpy has no bf16
    value = np.asarray(value)
    return value if value.dtype.kind == "i" else value.astype(np.float32)
