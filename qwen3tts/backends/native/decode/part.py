"""The decode core as a part of the pass `custom-kernels`: whether it fits a model, putting it in and out, its check."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qwen3tts.backends.native.checks import DTYPE_CODES
from qwen3tts.backends.native.decode.frame_decoder import MAX_SLOTS, NativeFrameDecoder
from qwen3tts.backends.native.decode.mixed import MixedFrameDecoder
from qwen3tts.backends.native.decode.projections import text_projection
from qwen3tts.backends.native.decode.state import PAGE, PREDICTOR_POSITIONS
from qwen3tts.backends.native.decode.weights import StoredForm, store_for_kernels
from qwen3tts.backends.native.module import Native
from qwen3tts.backends.torch.frame_decoder import TorchFrameDecoder
from qwen3tts.errors import KernelArgumentError
from qwen3tts.model.config import TransformerConfig
from qwen3tts.model.kv_cache import RowCache, kv_bytes_per_position
from qwen3tts.model.numerics import exact_arithmetic, on_device
from qwen3tts.model.sampling import SamplingParams
from qwen3tts.model.talker import Talker
from qwen3tts.runtime.protocols import FrameDecoder, RowRequest, Slot

logger = logging.getLogger(__name__)

HEAD_DIMS = (8, 16, 32, 64, 128)
QUERIES_PER_KEY = (1, 2, 4)
CHECKED_FRAMES = 3
CHECKED_ROWS = 4
CHECKED_PROMPT = 12
CHECKED_POSITIONS = 64
"""as many as the plain model reaches in the check, at most"""
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}
"""relative L2 distance of the logits of two implementations that round at the same places and sum in other orders"""
GAP = 8.0
"""a greedy pick may lie this many times the distance, in root mean squares of the logits, below the largest one"""


def decode_problem(model: Any, native: Native) -> str | None:
    """Why the core cannot run a loaded model, in a sentence; None: it can, as far as sizes tell."""
    frames, config = model.frames, model.talker.config
    if not hasattr(native.module, "Decoder"):
        return f"The {native.name.upper()} module is built without the decode core; CUDA's has it."
    if not isinstance(frames, TorchFrameDecoder):
        return f"The decode core replaces the plain frame decoder, but this model has a {type(frames).__name__}."
    if model.dtype not in DTYPE_CODES:
        return f"The decode core has no kernels for {model.dtype}."
    if frames.slots > MAX_SLOTS:
        return f"The decode core runs up to {MAX_SLOTS} streams; the model was loaded with max_streams={frames.slots}."
    page = PAGE * kv_bytes_per_position(config.transformer, model.dtype)
    if frames.kv_bytes is not None and frames.kv_bytes < page:
        return (
            f"The decode core keeps keys and values in pages of {page:,} bytes; kv_bytes={frames.kv_bytes:,} is less."
        )
    if not 2 <= config.num_code_groups <= PREDICTOR_POSITIONS:
        return f"The model makes {config.num_code_groups} codes a frame, the decode core 2 to {PREDICTOR_POSITIONS}."
    largest, limit = max(config.vocab_size, config.code_predictor.vocab_size), native.module.sampler_max_vocab
    if largest > limit:
        return f"The model has a vocabulary of {largest}, the sampler takes up to {limit}."
    stacks = (("talker", config.transformer), ("code predictor", config.code_predictor.transformer))
    return next((problem for name, stack in stacks if (problem := _stack_problem(name, stack))), None)


def _stack_problem(name: str, config: TransformerConfig) -> str | None:
    shared, rest = divmod(config.num_heads, config.num_kv_heads)
    if config.head_dim not in HEAD_DIMS or rest or shared not in QUERIES_PER_KEY:
        return (
            f"The {name} has {config.num_heads} heads of {config.head_dim} on {config.num_kv_heads} keys; the decode "
            f"core takes head sizes {', '.join(map(str, HEAD_DIMS))} and 1, 2 or 4 heads per key."
        )
    widths = (config.hidden_size, config.intermediate_size)
    if any(width % 8 for width in widths):
        return f"The {name} has the widths {widths[0]} and {widths[1]}; the decode core takes multiples of 8."
    return None


@dataclass
class InstalledDecode:
    """The core in place of a model's frame decoder."""

    core: NativeFrameDecoder
    plain: FrameDecoder
    """the decoder that was replaced; it still draws for rows with a torch generator"""
    form: StoredForm
    padding: Tensor

    def restore(self, model: Any) -> None:
        """Gives the model its own decoder back, and the weights the dtypes that they had; frees what the core had. May
        be called again."""
        model.frames = self.plain
        self.core.close()
        self.form.restore()
        vars(model.talker.text_projection).pop("forward", None)
        _forget_padding(self.plain)
        model.talker.rotary.cover(model.talker.rotary.positions)

    def status(self) -> dict[str, Any]:
        """What the manifest says of it."""
        graphs = self.core.captured
        return {
            "slots": self.core.slots,
            "pages": self.core.pages.pages,
            "positions_per_page": self.core.pages.page,
            "device_bytes": self.core.nbytes,
            "graphs": [[graph.rows, graph.frames, graph.launches] for graph in graphs if graph.frames],
            "prompt_graphs": [[graph.rows, graph.launches] for graph in graphs if not graph.frames],
            "heads_in_fp32": self.form.kept_wide,
            "persistent_predictor": self.core.persistent_problem or "in use, for one row",
        }

    @property
    def checked_frames(self) -> int:
        """Of each prompt of the check: enough for a replay of all frames at a time, if there are so many positions."""
        return min(max(CHECKED_FRAMES, self.core.frames_per_replay), self.core.max_positions - CHECKED_ROWS - 4)

    def error(self, model: Any, generator: torch.Generator) -> float:
        """A few frames of random prompts, greedy and sampled, with the plain model on the same codes: the largest
        distance of logits as a part of what the dtype allows. Infinite if codes depend on how many frames are made at a
        time and, in fp32, if they are not the plain decoder's on two sets of prompts: on one set, a draw may have been
        so close to the edge of two codes that another order of sums turns it."""
        error = self._error(model, generator)
        return self._error(model, generator) if error == math.inf and model.dtype == torch.float32 else error

    def _error(self, model: Any, generator: torch.Generator) -> float:
        core, frames = self.core, self.checked_frames
        length = min(CHECKED_PROMPT, core.max_positions - frames - CHECKED_ROWS)
        rows = _requests(model, generator, length, frames)
        rows = rows[: core.room_for(rows)]
        hidden: list[Tensor] = []
        codes, counts = _speak(core, rows, 1, lambda slots: hidden.append(core.hidden(slots)))
        if not _equal((codes, counts), _speak(core, rows, frames)):
            return math.inf
        if model.dtype == torch.float32 and not _equal((codes, counts), _speak(self.plain, rows, frames)):
            return math.inf
        with exact_arithmetic(model.device):
            return _distance(model.talker, rows, self.padding, codes, counts, hidden) / BOUNDS[model.dtype]


def install(
    model: Any,
    native: Native,
    frames_per_replay: int,
    kv_positions: int | None = None,
    persistent_predictor: bool = True,
    projections: bool = False,
) -> InstalledDecode:
    """Puts the core in place of model.frames, with a graph for every bucket. Undone if it raises.

    projections: see projections.py, whose projection_problem() must be None."""
    talker, plain = model.talker, model.frames
    form = store_for_kernels(talker)
    logger.debug("stored the heads for the kernels")
    try:
        if projections:
            vars(talker.text_projection)["forward"] = text_projection(native, talker.text_projection)
        with exact_arithmetic(model.device):
            padding = talker.embed_text(torch.tensor([model.config.tts_pad_id]))[0]
        try:
            with on_device(model.device):
                core = NativeFrameDecoder(
                    native, talker, padding, slots=plain.slots, max_positions=plain.max_positions,
                    kv_bytes=plain.kv_bytes, kv_positions=kv_positions, frames_per_replay=frames_per_replay,
                    persistent_predictor=persistent_predictor, projections=projections,
                )  # fmt: skip
        except ValueError as error:
            raise KernelArgumentError(f"The decode core does not fit this model: {error}") from error
    except BaseException:
        vars(talker.text_projection).pop("forward", None)
        form.restore()
        raise
    _forget_padding(plain)
    model.frames = MixedFrameDecoder(core, plain)
    talker.rotary.shorten(CHECKED_POSITIONS)  # the plain decoder gets them back when it runs further
    logger.info(
        "decode core: %d slots, %d positions of keys and values, %.0f MB beyond the weights",
        core.slots, core.pages.pages * core.pages.page, core.nbytes / 1e6,
    )  # fmt: skip
    return InstalledDecode(core, plain, form, padding)


def _forget_padding(plain: FrameDecoder) -> None:
    """The plain decoder makes its padding row anew: the text projection has other bits from now on."""
    if isinstance(plain, TorchFrameDecoder):
        plain.forget_padding()


# ------------------------------------------------------------ the check


def _requests(model: Any, generator: torch.Generator, length: int, frames: int) -> list[RowRequest]:
    """Prompts of random text tokens, from `length` positions up, greedy and sampled in every combination; the first one
    greedy in both."""
    talker = model.talker
    rows = []
    for i in range(CHECKED_ROWS):
        ids = torch.randint(talker.config.text_vocab_size, (2 + length + i,), generator=generator)
        with exact_arithmetic(model.device):
            embedded = talker.embed_text(ids)
        rows.append(
            RowRequest(
                prefill=embedded[2:],
                trailing=embedded[:2],
                talker=SamplingParams(i in (1, 3), 0.9, 50, 1.0),
                predictor=SamplingParams(i in (2, 3), 0.9, 50, 0.95),
                repetition_penalty=1.05,
                seed=int(torch.randint(2**62, (), generator=generator)),
                part=0,
                max_frames=frames,
            )
        )
    return rows


def _speak(
    decoder: FrameDecoder, rows: list[RowRequest], step: int, after: Callable[[list[Slot]], None] = lambda slots: None
) -> tuple[Tensor, Tensor]:
    """All frames of the rows, `step` at a time: codes int64 [rows, frames, groups], 0 past a row's end, and how many
    each made. after: called after the prompts and after every step."""
    slots = decoder.admit(rows)
    pieces: dict[Slot, list[Tensor]] = {slot: [] for slot in slots}
    try:
        after(slots)
        for _ in range(0, rows[0].max_frames, step):
            made = decoder.advance(step, slots)
            for slot, codes, count in zip(made.slots, made.codes, made.counts, strict=True):
                pieces[slot].append(codes[:count])
            after(slots)
    finally:
        for slot in slots:
            decoder.release(slot)
    joined = [torch.cat(parts) for parts in pieces.values()]
    return torch.nn.utils.rnn.pad_sequence(joined, batch_first=True), torch.tensor([len(codes) for codes in joined])


def _equal(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _distance(
    talker: Talker, rows: list[RowRequest], padding: Tensor, codes: Tensor, counts: Tensor, hidden: list[Tensor]
) -> float:
    """The plain model on the core's codes: the largest relative L2 distance of the logits of code 0, or what greedy
    picks of the other codes lie below the largest logit, made comparable.

    hidden: the core's states [rows, hidden] after the prompts and after every frame."""
    device, config = talker.device, talker.config
    lengths = [len(row.prefill) for row in rows]
    caches = [RowCache(config.transformer, n + codes.shape[1], device, talker.dtype) for n in lengths]
    states = [talker(row.prefill, [cache], [n])[-1:] for row, cache, n in zip(rows, caches, lengths, strict=True)]
    state = torch.cat(states)
    greedy = torch.tensor([not row.predictor.do_sample for row in rows])
    worst = [_relative(talker.logits(hidden[0]), talker.logits(state)).max()]
    predictor_cache = talker.code_predictor.new_cache(len(rows))
    for frame in range(codes.shape[1]):
        made, speaking = codes[:, frame].to(device), counts > frame

        def forced(codebook: int, logits: Tensor, made: Tensor = made, shown: Tensor = speaking & greedy) -> Tensor:
            picked = made[:, codebook]
            gap = logits.amax(1) - logits.gather(1, picked[:, None])[:, 0]
            worst.append(_largest(gap / (GAP * logits.square().mean(1).sqrt()), shown))
            return picked

        _, total = talker.code_predictor(state, talker.embed_codec(made[:, 0]), forced, predictor_cache)
        text = torch.stack([row.trailing[frame] if frame < len(row.trailing) else padding for row in rows])
        state = talker(total + text, caches, [1] * len(rows))
        worst.append(_largest(_relative(talker.logits(hidden[frame + 1]), talker.logits(state)), speaking))
    return float(torch.stack(worst).max())


def _largest(values: Tensor, shown: Tensor) -> Tensor:
    """The largest of some values; 0 without any, NaN if one is."""
    return torch.where(shown.to(values.device), values, 0.0).max()


def _relative(got: Tensor, want: Tensor) -> Tensor:
    """[rows]: L2 distances over lengths."""
    distance: Tensor = torch.linalg.vector_norm(got - want, dim=1) / torch.linalg.vector_norm(want, dim=1)
    return distance
