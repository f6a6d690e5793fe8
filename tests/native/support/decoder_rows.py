"""A tiny model's frame decoders on the decode core and in torch, rows that differ in everything, and their lives."""

from dataclasses import replace

import torch

from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.backends.torch.frame_decoder import TorchFrameDecoder
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.model.sampling import SamplingParams
from qwen3tts.runtime.protocols import RowRequest

POSITIONS = 96
GROUPS = 3


def narrow(predictor_hidden):
    """A model of few and narrow products: the emulation takes its time for each."""
    sizes = {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "num_code_groups": GROUPS}
    predictor = sizes | {"hidden_size": predictor_hidden, "num_hidden_layers": 1}
    return {
        "config": {"talker_config": sizes | {"hidden_size": 32, "code_predictor_config": predictor}},
        "speech_tokenizer": {"encoder_valid_num_quantizers": GROUPS, "decoder_config": {"num_quantizers": GROUPS}},
    }


PRESETS = {"plain": ("tiny", narrow(32)), "projected": ("tiny-mtp", narrow(16))}
FIXED_SEED = 5
"""of comparisons with torch: sums in another order may turn a draw about once in ten thousand, which a fresh seed would
meet now and then"""


def padding(runtime):
    with exact_arithmetic(runtime.device):
        return runtime.talker.embed_text(torch.tensor([runtime.config.tts_pad_id], device=runtime.device))[0]


def core_of(native, runtime, slots=5, frames_per_replay=3, max_positions=POSITIONS, kv_bytes=None, page=8, **others):
    return NativeFrameDecoder(
        native, runtime.talker, padding(runtime), slots=slots, max_positions=max_positions, kv_bytes=kv_bytes,
        frames_per_replay=frames_per_replay, page=page, **others,
    )  # fmt: skip


def plain_of(runtime, slots=5):
    return TorchFrameDecoder(
        runtime.talker, padding(runtime), slots=slots, max_positions=POSITIONS, kv_bytes=None
    )  # fmt: skip


def draw(runtime, generator, rows):
    width = runtime.talker.config.transformer.hidden_size
    return torch.randn(rows, width, generator=generator).to(runtime.device, runtime.dtype)


def sampling(rng):
    if rng.random() < 0.25:
        return SamplingParams(False, 1.0, 0, 1.0)
    return SamplingParams(
        True, rng.choice([0.3, 0.9, 1.0, 2.5]), rng.choice([0, 1, 3, 50, 5000]), rng.choice([1.0, 0.99, 0.8, 0.3])
    )


def request(runtime, rng, longest=12, **changes):
    """A row that differs from others in everything."""
    generator = torch.Generator().manual_seed(rng.randrange(2**40))
    row = RowRequest(
        prefill=draw(runtime, generator, rng.choice([1, 2, rng.randint(3, 15)])),
        trailing=draw(runtime, generator, rng.randint(0, 5)),
        talker=sampling(rng),
        predictor=sampling(rng),
        repetition_penalty=rng.choice([1.0, 1.05, 1.7]),
        seed=rng.randrange(2**64),
        part=rng.randrange(3),
        max_frames=rng.randint(1, longest),
        text_complete=rng.random() < 0.6,
    )
    return replace(row, **changes)


def listed(batch):
    """A FrameBatch in numbers that can be compared."""
    codes = [codes[:count].tolist() for codes, count in zip(batch.codes, batch.counts, strict=True)]
    return batch.slots, batch.counts, batch.finished, codes


def life(decoder, runtime, rng, steps):
    """Joins, pauses, texts, cancels and ends in a random order, which depends on what came out alone: all of that."""
    log, waiting, spoken = [], {}, set()
    for _ in range(steps):
        rows = [request(runtime, rng) for _ in range(rng.choice([0, 1, 1, 2]))]
        fit = decoder.room_for(rows)
        slots = decoder.admit(rows[:fit], wait=rng.random() < 0.5)
        waiting.update((slot, row) for slot, row in zip(slots, rows[:fit], strict=True))
        log.append((fit, slots, decoder.free_slots(), decoder.open_slots()))
        for slot, row in list(waiting.items()):
            if not row.text_complete and rng.random() < 0.5:
                more = draw(runtime, torch.Generator().manual_seed(rng.randrange(2**40)), rng.randint(0, 3))
                last = rng.random() < 0.4
                decoder.add_text(slot, more, last)
                waiting[slot] = replace(row, text_complete=last)
        asked = None if rng.random() < 0.6 else tuple(rng.sample(sorted(waiting), rng.randint(0, len(waiting))))
        batch = decoder.advance(rng.choice([0, 1, 1, 2, 3, 4, 7]), asked)
        log.append(listed(batch))
        for slot, reason in zip(batch.slots, batch.finished, strict=True):
            spoken.add(reason)
            if reason is not None or rng.random() < 0.05:
                decoder.release(slot)
                decoder.release(slot)
                del waiting[slot]
    for slot in waiting:
        decoder.release(slot)
    assert spoken == {None, "eos", "length"}
    assert decoder.open_slots() == frozenset()
    return log


def whole_life(core, rows, step):
    """Each row's codes and end, all admitted at once."""
    return to_the_end(core, core.admit(rows), step)


def to_the_end(core, slots, step):
    """The codes and ends of admitted rows, which are released."""
    made = {slot: [] for slot in slots}
    ends = {}
    while len(ends) < len(slots):
        batch = core.advance(step, [slot for slot in slots if slot not in ends])
        for slot, _, reason, codes in zip(*listed(batch), strict=True):
            made[slot] += codes
            if reason is not None:
                ends[slot] = reason
                core.release(slot)
    return [(made[slot], ends[slot]) for slot in slots]
