"""Compares this project's arrays of a case with the official package's, by the limits of docs/parity.md."""

from dataclasses import dataclass, field

import numpy as np

PROMPT_LIMIT = 1e-5
"""max abs error / max abs"""
LOGIT_LIMIT = 1e-5
"""relative L2"""
WAV_LIMIT = 1e-4
"""max abs error, full scale 1"""
EMBEDDING_LIMIT = 1e-5
"""max abs error of an x-vector"""
MARGIN_LIMIT = 1e-3
"""codebook entries whose distances differ by less may swap"""
TIE_LIMIT = 1e-4
"""scores closer than this may swap when sums are taken in another order"""


def max_relative(ours, theirs):
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def relative_l2(ours, theirs):
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def max_absolute(ours, theirs):
    return float(np.abs(ours - theirs).max(initial=0))


MEASURES = {"prefill": (max_relative, PROMPT_LIMIT), "trailing": (max_relative, PROMPT_LIMIT),
            "tts_pad": (max_relative, PROMPT_LIMIT), "hidden": (relative_l2, LOGIT_LIMIT),
            "talker_logits": (relative_l2, LOGIT_LIMIT), "predictor_logits": (relative_l2, LOGIT_LIMIT),
            "speaker_embedding": (max_absolute, EMBEDDING_LIMIT), "wav": (max_absolute, WAV_LIMIT),
            "dropin_wav": (max_absolute, WAV_LIMIT)}
EXACT = ("text_ids", "instruct_ids", "ref_ids", "ref_codes", "codes")


def extra_samples(ref_frames, frames, samples_per_frame=1920):
    """Samples of the reference at the start of an official waveform: rounding makes it cut one too few in 3.7 % of
    lengths. frames: the new ones."""
    total = ref_frames + frames
    return ref_frames * samples_per_frame - int(ref_frames / total * (total * samples_per_frame))


def with_extra_samples(ours, theirs, extra):
    """A waveform of ours with those of the official one before it. theirs may be thinned out, if extra is 0 or 1."""
    return np.concatenate((theirs[:extra], ours))


@dataclass
class Comparison:
    """Of one case: the largest error of each kind of array, and every difference in words."""

    errors: dict[str, float] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    ties: list[str] = field(default_factory=list)
    codes: bool = False
    """whether codes were among what was compared"""

    def add(self, name, ours, theirs, *, seen=None):
        """One array. `seen`: the official scores that decide whether a code difference is a tie."""
        kind = name.split(".")[0]
        self.codes |= kind == "codes"
        shared = min(len(ours), len(theirs))
        if kind in EXACT and not np.array_equal(ours[:shared], theirs[:shared]):
            self._unequal(name, ours[:shared], theirs[:shared], seen)
        elif ours.shape != theirs.shape:
            self.differences.append(f"{name}: shape {list(ours.shape)}, official {list(theirs.shape)}")
        elif kind not in EXACT:
            measure, limit = MEASURES[kind]
            error = measure(ours, theirs)
            self.errors[kind] = max(self.errors.get(kind, 0.0), error)
            if not error <= limit:  # also when it is not a number
                self.differences.append(f"{name}: error {error:.2e}, allowed {limit:.0e}")

    def add_encoded(self, name, ours, theirs, margin):
        """Codes of a recording. margin [frames, 16]: how much farther the second-nearest codebook entry was."""
        self.codes = True
        if ours.shape != theirs.shape:
            self.differences.append(f"{name}: shape {list(ours.shape)}, official {list(theirs.shape)}")
            return
        for frame in np.flatnonzero((ours != theirs).any(1)):
            book = int(np.flatnonzero(ours[frame] != theirs[frame])[0])
            text = f"{name}[{frame}, {book}]: {ours[frame, book]}, official {theirs[frame, book]}"
            close = margin[frame, book] < MARGIN_LIMIT  # what follows in the frame starts from another residual
            (self.ties if close else self.differences).append(f"{text}, margin {margin[frame, book]:.1e}")

    def same(self, name, ours, theirs):
        """Two plain values."""
        if ours != theirs:
            self.differences.append(f"{name}: {ours!r}, official {theirs!r}")

    def _unequal(self, name, ours, theirs, seen):
        where = tuple(int(i) for i in np.argwhere(ours != theirs)[0])
        text = f"{name}{list(where)}: {ours[where]}, official {theirs[where]}"
        if seen is not None and near_tie(seen, where, ours[where], theirs[where]):
            self.ties.append(text)
        else:
            self.differences.append(text)


def near_tie(scores, where, ours, theirs):
    """True if the official scores of the two codes at (frame, codebook) are within rounding of each other. scores:
    (talker_scores [n + 1, V], predictor_logits [n, 15, C]) of a greedy row."""
    frame, codebook = where
    row = scores[0][frame] if codebook == 0 else scores[1][frame, codebook - 1]
    return bool(row[theirs] - row[ours] < TIE_LIMIT)


def compare_generation(ours, theirs, *, greedy_scores=False):
    """All arrays that ours has, with the official ones of the same name (dropin_wav with wav). `theirs` needs names
    only; greedy_scores: it holds whole, greedy scores, so that ties can be told from errors."""
    result = Comparison()
    for name, array in ours.items():
        kind, _, row = name.partition(".")
        if kind == "ref_codes":
            result.add_encoded(name, array, theirs[name], theirs[f"ref_margin.{row}"])
            continue
        seen = (theirs[f"talker_scores.{row}"], theirs[f"predictor_logits.{row}"]) if greedy_scores and row else None
        other = np.asarray(theirs[name.replace("dropin_", "")])
        if kind.endswith("wav") and f"ref_codes.{row}" in ours:
            extra = extra_samples(len(theirs[f"ref_codes.{row}"]), len(theirs[f"codes.{row}"]))
            array = with_extra_samples(array, other, extra)
        result.add(name, np.asarray(array), other, seen=seen if kind == "codes" else None)
    return result
