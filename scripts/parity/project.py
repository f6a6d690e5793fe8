"""Runs this project on the cases of the official package and gives the same arrays under the same names."""

import contextlib
import warnings

import numpy as np
import torch
from public_api import sampling_of, speak
from signals import SAMPLE_RATE, signal

import qwen3tts
from qwen3tts.model.kv_cache import RowCache
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.text.tokenizer import clean_text
from qwen3tts.voice.resolve import drops_instruct

CPU = torch.device("cpu")


def is_icl(row):
    """Whether a row speaks on from a recording."""
    return row.get("reference", {}).get("mode") == "icl"


class Project:
    """This project on one checkpoint, on the CPU: native interface, drop-in class, plain model. Arrays are float32,
    also of a model in bf16."""

    def __init__(self, checkpoint, dtype="float32"):
        self.tts = qwen3tts.load(str(checkpoint), backend="torch", device="cpu", dtype=dtype)
        self.dropin = qwen3tts.Qwen3TTSModel.from_pretrained(str(checkpoint), dtype=self.tts.dtype)
        self.runtime, self.template = self.tts.engine.runtime, self.tts.engine.template
        self.config, self.talker = self.runtime.config, self.runtime.talker

    # ------------------------------------------------------------ whole runs

    def generate(self, case, theirs):
        """One generation case -> (arrays, finish reasons). `theirs` is asked for voices (speaker_embedding) and, for
        the logits, for the codes to feed. Runs the native interface, the plain model and the drop-in class; only the
        latter (finish reasons None) if a text has white space at its ends, which the native interface strips."""
        if any(clean_text(row["text"]) != row["text"] for row in case["rows"]):
            return {f"dropin_wav.{r}": wav for r, wav in enumerate(self.run_dropin(case, theirs))}, None
        arrays, finish = self.run_native(case, theirs)
        arrays |= {f"dropin_wav.{r}": wav for r, wav in enumerate(self.run_dropin(case, theirs))}
        if case["kind"] == "voice_clone":
            arrays |= self.prompts(case)
        for r in range(len(case["rows"])):
            forced = self.force(arrays[f"prefill.{r}"], arrays[f"trailing.{r}"], theirs[f"codes.{r}"])
            arrays |= {f"{name}.{r}": value for name, value in forced.items()}
        return arrays, finish

    def run_native(self, case, theirs):
        """qwen3tts.TTS.generate -> token ids, prompts, codes, samples of each row, and the finish reasons."""
        texts = [row["text"] for row in case["rows"]]
        with self._requests() as requests:
            spoken = self.tts.generate(texts, **self.native_arguments(case, theirs))
        arrays = {"tts_pad": self._embed([self.config.tts_pad_id])[0]}
        for r, (row, request, speech) in enumerate(zip(case["rows"], requests, spoken, strict=True)):
            arrays |= {f"text_ids.{r}": np.array(self.template.speech_ids(clean_text(row["text"]))),
                       f"prefill.{r}": request.prefill.float().numpy(),
                       f"trailing.{r}": request.trailing.float().numpy(),
                       f"codes.{r}": speech.codes, f"wav.{r}": speech.samples}
            if is_icl(row):
                arrays[f"ref_ids.{r}"] = np.array(self._ref_ids(row["reference"]["text"]))
            instruct = self._instruct(row)
            if instruct is not None:
                arrays[f"instruct_ids.{r}"] = np.array(self.template.instruct_ids(instruct))
        return arrays, [speech.finish_reason for speech in spoken]

    def native_arguments(self, case, theirs):
        """The case in the terms of TTS.generate: one value per row, and the official streaming text and draws."""
        rows, sampling = case["rows"], sampling_of(case)
        timing = {"text_mode": "whole" if case["non_streaming_mode"] else "streamed"}
        if sampling["do_sample"] or sampling["subtalker_dosample"]:
            timing |= {"rng": "torch", "seed": case.get("seed", 0)}
        options = qwen3tts.GenerateOptions(max_frames=case["max_new_tokens"] - 1, **timing, **sampling)
        if not case["non_streaming_mode"]:  # beside a recording the text has no lookahead
            ahead = options.replace(text_lookahead_tokens=1)
            options = [options if is_icl(row) else ahead for row in rows]
        return {"voice": [self._voice(case, row, theirs, r) for r, row in enumerate(rows)], "options": options,
                "language": [row.get("language", "Auto") for row in rows],
                "instruct": [self._instruct(row) for row in rows]}

    def run_dropin(self, case, theirs):
        """The same through Qwen3TTSModel: list of samples. Clones speak with the official package's prompts."""
        items = None
        if case["kind"] == "voice_clone":
            items = [self._item(row, theirs, r) for r, row in enumerate(case["rows"])]
        with warnings.catch_warnings():  # where the official class is silent
            warnings.simplefilter("ignore", UserWarning)
            wavs, rate = speak(self.dropin, case, items)
        if rate != 24000:
            raise ValueError(f"the drop-in class returns {rate} Hz")
        return wavs

    def prompts(self, case):
        """The prompts of a clone's recordings by create_voice_clone_prompt: ref_codes.r and speaker_embedding.r."""
        arrays = {}
        for r, row in enumerate(case["rows"]):
            reference = row["reference"]
            item, = self.dropin.create_voice_clone_prompt((signal(**reference["signal"]), SAMPLE_RATE),
                                                          reference.get("text"), not is_icl(row))
            arrays[f"speaker_embedding.{r}"] = item.ref_spk_embedding.numpy()
            if is_icl(row):
                arrays[f"ref_codes.{r}"] = item.ref_code.numpy()
        return arrays

    @staticmethod
    def _item(row, theirs, r):
        codes = torch.from_numpy(np.array(theirs[f"ref_codes.{r}"], np.int64)) if is_icl(row) else None
        return qwen3tts.VoiceClonePromptItem(codes, torch.from_numpy(np.array(theirs[f"speaker_embedding.{r}"])),
                                             not is_icl(row), is_icl(row), row["reference"].get("text"))

    def _voice(self, case, row, theirs, r):
        if is_icl(row):
            return qwen3tts.Voice.from_reference(theirs[f"speaker_embedding.{r}"], theirs[f"ref_codes.{r}"],
                                                 row["reference"]["text"])
        if case["kind"] == "voice_clone":
            return qwen3tts.Voice.from_x_vector(theirs[f"speaker_embedding.{r}"])
        return row.get("speaker")

    def _ref_ids(self, text):
        """The official turn around a transcript is the spoken one without the opening of the answer."""
        return self.template.speech_ids(text)[:-3]

    def _instruct(self, row):
        """None where the official package drops it: the native interface refuses it there."""
        return None if drops_instruct(self.config) else row.get("instruct") or None

    @contextlib.contextmanager
    def _requests(self):
        """Notes the rows that enter the frame decoder."""
        seen, frames = [], self.runtime.frames
        admit = frames.admit
        frames.admit = lambda rows, wait=True: (seen.extend(rows), admit(rows, wait))[1]
        try:
            yield seen
        finally:
            del frames.admit

    # ------------------------------------------------------------ the plain model

    def _embed(self, ids):
        with exact_arithmetic(CPU):
            return self.talker.embed_text(torch.tensor(ids)).float().numpy()

    def force(self, prefill, trailing, codes, hidden_for_predictor=None):
        """Teacher forcing, step by step with the KV cache as in a real run: prompt float [T, H], text rows [S, H] and
        the codes [n, 16] to feed -> hidden [n, H], talker_logits [n + 1, V], predictor_logits [n, 15, C]. The code
        predictor starts from these hidden states, or from those given [n, H]."""
        codes, talker = torch.from_numpy(np.array(codes, np.int64)), self.talker
        prefill, trailing, pad = (torch.from_numpy(np.array(rows)).to(talker.dtype) for rows in
                                  (prefill, trailing, self._embed([self.config.tts_pad_id])))
        cache = RowCache(talker.config.transformer, len(prefill) + len(codes), CPU, talker.dtype)
        with exact_arithmetic(CPU):
            hidden = [talker(prefill, [cache], [len(prefill)])[-1:]]
            for s, frame in enumerate(codes):
                text = trailing[s:s + 1] if s < len(trailing) else pad
                hidden.append(talker(talker.embed_frame(frame[None]) + text, [cache], [1]))
            hidden = torch.cat(hidden)
            # In bf16 one row at a time, as in a real run: batches are summed in another order, which shows there.
            together = len(codes) if talker.dtype == torch.float32 else 1
            start = hidden[:-1] if hidden_for_predictor is None else torch.from_numpy(np.array(hidden_for_predictor))
            predicted = [self._force_predictor(h, c) for h, c in zip(start.to(talker.dtype).split(together),
                                                                     codes.split(together), strict=True)]
            logits = [talker.logits(h) for h in hidden.split(together)]
            return {"hidden": hidden[:-1].float().numpy(), "talker_logits": torch.cat(logits).numpy(),
                    "predictor_logits": torch.cat(predicted).numpy()}

    def _force_predictor(self, hidden, codes):
        """hidden [n, H], codes [n, 16] -> logits [n, 15, C], all frames side by side."""
        logits = []

        def pick(codebook, row_logits):
            logits.append(row_logits)
            return codes[:, codebook]

        predictor = self.talker.code_predictor
        predictor(hidden, self.talker.embed_codec(codes[:, 0]), pick, predictor.new_cache(len(codes)))
        return torch.stack(logits, 1)

    # ------------------------------------------------------------ codec

    def decode(self, codes, *, official_chunks=False):
        """Codes [frames, 16] -> samples float32 [frames * 1920]."""
        codes, codec = torch.from_numpy(np.array(codes, np.int64)), self.runtime.codec
        if official_chunks:
            return codec.decode_official(codes).numpy()
        state = codec.open()
        samples = codec.decode([state], [codes])[0].numpy()
        codec.close(state)
        return samples
