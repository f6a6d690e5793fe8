"""Texts in, speech out, on a loaded runtime: prompts, codes, samples. Knows neither files nor defaults; api.py does."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qwen3tts.errors import TextError
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.model.sampling import SamplingParams
from qwen3tts.model.talker import to_device
from qwen3tts.options import GenerateOptions
from qwen3tts.runtime.generation import Progress, ProgressEvent, RowResult, generate_codes
from qwen3tts.runtime.length import default_max_frames
from qwen3tts.runtime.protocols import RowRequest, Runtime
from qwen3tts.runtime.speech import Speech, Timings
from qwen3tts.text.prompt import NO_CODEC, REFERENCE_ROW, SPEAKER_ROW, Prompt, Reference, TextMode, build_prompt
from qwen3tts.text.tokenizer import CLOSING_TOKENS, ROLE_TOKENS, ChatTemplate
from qwen3tts.voice.resolve import ResolvedVoice

KEPT_REFERENCES = 4
"""codec states after a voice's recording that are kept for its next text, a few megabytes each"""
DECODE_STEP = 96
"""frames between two reports of progress while decoding"""


@dataclass(frozen=True)
class RowSpec:
    """One text with everything decided."""

    text: str | tuple[int, ...]
    """as the caller gave it, or its token ids"""
    voice: ResolvedVoice
    options: GenerateOptions
    seed: int
    text_mode: TextMode
    lookahead: int
    frames_may_shrink: bool = False
    """an explicit max_frames that does not fit the context is cut to what does; else it is an error"""
    text_complete: bool = True
    """False: more text follows, through FrameDecoder.add_text"""
    part: int = 0
    """third word of the random counter: which part of a text that is spoken in parts"""
    generator: torch.Generator | None = None
    """draw as the official package does, from this; None: counter-based draws from seed"""


class Engine:
    """Speaks on one runtime. One call at a time."""

    def __init__(self, runtime: Runtime, template: ChatTemplate, max_new_tokens: int | None) -> None:
        """max_new_tokens: the checkpoint's limit, None without a generation_config.json."""
        self.runtime, self.template, self.max_new_tokens = runtime, template, max_new_tokens
        self._after_reference: dict[bytes, Any] = {}
        """codec states by the bytes of the reference codes, the last used one last"""

    def forget_references(self) -> None:
        """Closes the kept codec states: another codec cannot go on from them."""
        while self._after_reference:
            self.runtime.codec.close(self._after_reference.popitem()[1])

    # ------------------------------------------------------------ prompts

    def prompt(self, spec: RowSpec) -> Prompt:
        """The prompt of one text, in ids."""
        voice, reference = spec.voice, None
        if voice.ref_codes is not None and voice.ref_text is not None:
            reference = Reference(voice.ref_text, len(voice.ref_codes))
        return build_prompt(
            self.runtime.config,
            self.template,
            text=spec.text,
            instruct=voice.instruct,
            language_id=voice.language_id,
            speaker_id=voice.speaker_id,
            x_vector=voice.x_vector is not None,
            text_mode=spec.text_mode,
            lookahead=spec.lookahead,
            reference=reference,
            text_complete=spec.text_complete,
        )

    def reference_rows(self, spec: RowSpec) -> int | None:
        """Text tokens that a streamed text needs before a voice with a reference of R frames can start: its text lane
        runs beside R + 1 rows, and the transcript comes first. None for other voices."""
        voice = spec.voice
        if voice.ref_codes is None or voice.ref_text is None:
            return None
        transcript = self.template.speech_ids(voice.ref_text)[ROLE_TOKENS:-CLOSING_TOKENS]
        return max(1, len(voice.ref_codes) + 1 - len(transcript))

    def embed(
        self, prompt: Prompt, x_vector: NDArray[np.float32] | None, ref_codes: NDArray[np.int16] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Prefill rows [T, hidden] and trailing text rows [S, hidden]. Each different token is projected once.

        x_vector: for the prompt's SPEAKER_ROW; ref_codes [R, 16]: for its REFERENCE_ROWs."""
        talker, length = self.runtime.talker, len(prompt)
        unique, at = np.unique(np.array(prompt.text_ids + prompt.trailing_ids, np.int64), return_inverse=True)
        codec = np.array(prompt.codec_ids, np.int64)
        rows = np.flatnonzero(codec > NO_CODEC)
        embedded, sent = talker.embed_text_with(unique, np.concatenate((at, rows, codec[rows]), dtype=np.int64))
        place, coded, tokens = sent.split([len(at), len(rows), len(rows)])
        text = embedded.index_select(0, place)
        prefill = text[:length]
        if len(rows) and rows[-1] - rows[0] + 1 == len(rows):  # the usual case, and a cheaper operation
            prefill[rows[0] : rows[-1] + 1].add_(talker.embed_codec(tokens))
        else:
            prefill.index_add_(0, coded, talker.embed_codec(tokens))
        if x_vector is not None:
            vector = to_device(torch.tensor(x_vector).to(talker.dtype), talker.device)
            prefill[prompt.codec_ids.index(SPEAKER_ROW)].add_(vector)
        if ref_codes is not None and prompt.reference_frames:
            first = prompt.codec_ids.index(REFERENCE_ROW)  # of rows that follow one another
            spoken = prefill[first : first + prompt.reference_frames]
            spoken.add_(talker.embed_frame(to_device(_codes(ref_codes), talker.device)))
        return prefill, text[length:]

    def request(self, spec: RowSpec) -> RowRequest:
        """Tokenizes, assembles and embeds one text. Raises TextError if it does not fit the context."""
        prompt, options = self.prompt(spec), spec.options
        room = self.runtime.max_positions - len(prompt)
        if room < 1:
            reference = f" ({prompt.reference_frames} for the voice's recording)" if prompt.reference_frames else ""
            raise TextError(
                f"The text has {prompt.text_tokens} tokens and its prompt {len(prompt)} positions{reference}, but the "
                f"context has {self.runtime.max_positions}. Split the text."
            )
        max_frames = options.max_frames
        if max_frames is None:
            budgeted = prompt.text_tokens if spec.text_complete else None
            max_frames = min(default_max_frames(budgeted, self.max_new_tokens), room)
        elif spec.frames_may_shrink:
            max_frames = min(max_frames, room)
        elif max_frames > room:
            raise TextError(
                f"max_frames={max_frames} does not fit: the prompt takes {len(prompt)} of "
                f"{self.runtime.max_positions} positions, which leaves {room} frames."
            )
        with exact_arithmetic(self.runtime.device):
            prefill, trailing = self.embed(prompt, spec.voice.x_vector, spec.voice.ref_codes)
        return RowRequest(
            prefill=prefill,
            trailing=trailing,
            talker=SamplingParams(options.do_sample, options.temperature, options.top_k, options.top_p),
            predictor=SamplingParams(
                options.subtalker_dosample,
                options.subtalker_temperature,
                options.subtalker_top_k,
                options.subtalker_top_p,
            ),
            repetition_penalty=options.repetition_penalty,
            seed=spec.seed,
            part=spec.part,
            max_frames=max_frames,
            generator=spec.generator,
            text_complete=spec.text_complete,
        )

    # ------------------------------------------------------------ speech

    def speak(self, specs: Sequence[RowSpec], *, decode: bool = True, progress: Progress | None = None) -> list[Speech]:
        """One Speech per text, in order. Texts beyond the backend's slots wait for a place."""
        clock = time.perf_counter
        started = clock()
        requests = [self.request(spec) for spec in specs]
        prompt_seconds = clock() - started
        prefills: list[float] = []
        results = generate_codes(
            self.runtime.frames,
            requests,
            on_prefill=prefills.append,
            clock=clock,
            progress=progress,
        )
        generated = clock() - started
        groups = self.runtime.config.talker.num_code_groups
        codes = [result.codes(groups) for result in results]
        total, done = sum(map(len, codes)), 0
        speeches = []
        for spec, result, row in zip(specs, results, codes, strict=True):
            before = clock()
            samples = np.zeros(0, np.float32)
            if decode:
                official = spec.options.codec_chunking == "official"
                samples = self.decode(row, official, done, total, progress, spec.voice.ref_codes)
            done += len(row)
            timings = Timings(prompt_seconds, sum(prefills), generated, clock() - before if decode else 0.0)
            speeches.append(self._speech(spec, result, row, samples, timings))
        return speeches

    def _speech(
        self, spec: RowSpec, result: RowResult, codes: NDArray[np.int16], samples: NDArray[np.float32], timings: Timings
    ) -> Speech:
        codec = self.runtime.config.codec
        return Speech(
            samples, codec.sample_rate, codes, result.finish_reason, spec.seed, timings, codec.samples_per_frame
        )

    def decode(
        self,
        codes: NDArray[np.int16],
        official: bool,
        done: int,
        total: int,
        progress: Progress | None,
        ref_codes: NDArray[np.int16] | None = None,
    ) -> NDArray[np.float32]:
        """int16 [frames, 16] -> float32 [frames * 1920]; reports progress after the `done` frames of other texts.

        ref_codes [R, 16]: the frames that go before; their R * 1920 samples are not returned."""
        codec, frames = self.runtime.codec, _codes(codes)
        if official:
            before = torch.zeros(0, frames.shape[1], dtype=torch.int64) if ref_codes is None else _codes(ref_codes)
            dropped = len(before) * self.runtime.config.codec.samples_per_frame
            return codec.decode_official(torch.cat((before, frames))).numpy()[dropped:]
        state, pieces = self.open_codec(ref_codes), [torch.zeros(0)]
        try:
            for piece in frames.split(DECODE_STEP):
                pieces += codec.decode([state], [piece])
                done += len(piece)
                if progress is not None:
                    progress(ProgressEvent("decode", done, total))
        finally:
            codec.close(state)
        return torch.cat(pieces).numpy()

    def open_codec(self, ref_codes: NDArray[np.int16] | None) -> Any:
        """A new codec stream, to be closed by the caller; it goes on from the reference's frames [R, 16], if any."""
        codec = self.runtime.codec
        if ref_codes is None:
            return codec.open()
        key = ref_codes.tobytes()
        state = self._after_reference.pop(key, None)
        if state is None:
            state = codec.open()
            for piece in _codes(ref_codes).split(DECODE_STEP):
                codec.decode([state], [piece])  # for the state alone: this audio is the recording itself
        self._after_reference[key] = state
        if len(self._after_reference) > KEPT_REFERENCES:
            codec.close(self._after_reference.pop(next(iter(self._after_reference))))
        return codec.fork(state)


def _codes(codes: NDArray[np.int16]) -> Tensor:
    """[frames, 16] as int64 on the host."""
    return torch.from_numpy(codes.astype(np.int64))
