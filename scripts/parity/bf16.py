"""bf16 on the CPU: this project beside the official package, both fed the official codes.

Rounding to bf16 leaves an error that depends on the order of sums, which CPUs choose differently. So two things are
said of every array: whether it is equal bit for bit, and its distance from the official one as a part of the official
package's own error, the distance of its bf16 result from fp32. A wrong place of rounding, or none, is as far away as
that error; another order of the same sums is not.
"""

from dataclasses import dataclass

import numpy as np
import torch
from compare import relative_l2
from fixtures import thin
from project import Project

KINDS = ("prefill", "trailing", "hidden", "talker_logits", "predictor_logits")
LIMIT = 0.75
"""of the official package's own error"""

CASES = {"tiny-custom_voice": ("cv_english_full", "cv_english_stream"),
         "tiny-mtp-custom_voice": ("mtp_cv_instruct_full",)}
"""what the fixtures keep; live.py --dtype bfloat16 runs every case that generates"""


class Pair:
    """This project on one checkpoint, in bf16 and in fp32."""

    def __init__(self, checkpoint):
        self.bf16, self.fp32 = Project(checkpoint, "bfloat16"), Project(checkpoint)

    def arrays(self, case, theirs):
        """(bf16, fp32): the KINDS of arrays of each row, as float32. Prompts of each project's own, logits and hidden
        states from the official codes. In bf16 the talker starts from the official prompt and the code predictor from
        the official hidden states, so that errors do not add up."""
        ours, exact = self.bf16.run_native(case, theirs)[0], self.fp32.run_native(case, theirs)[0]
        for r in range(len(case["rows"])):
            codes = theirs[f"codes.{r}"]
            for arrays, project, given, hidden in ((ours, self.bf16, theirs, theirs[f"hidden.{r}"]),
                                                   (exact, self.fp32, exact, None)):
                forced = project.force(given[f"prefill.{r}"], given[f"trailing.{r}"], codes, hidden)
                arrays |= {f"{kind}.{r}": value for kind, value in forced.items()}
        return tuple({name: value for name, value in arrays.items() if name.split(".")[0] in KINDS}
                     for arrays in (ours, exact))


@dataclass(frozen=True)
class Distance:
    """Of one array."""

    equal: bool
    error: float
    """relative L2, this project in bf16 against the official package in bf16"""
    own: float
    """the official package in bf16 against fp32"""

    @property
    def good(self):
        return self.equal or self.error <= LIMIT * self.own

    def __str__(self):
        return "equal" if self.equal else f"{self.error:.1e} (own {self.own:.1e})"


def distance(ours, exact, theirs):
    """Logits are rounded to bf16 first: the official heads do that, the heads of this project never."""
    rounded = as_bf16(ours)
    return Distance(np.array_equal(rounded, theirs), relative_l2(rounded, theirs), relative_l2(theirs, exact))


def as_bf16(array):
    """float32 -> the nearest bf16 values, as float32."""
    return torch.from_numpy(np.array(array)).bfloat16().float().numpy()


def distances(ours, exact, theirs):
    """{array name: Distance} of what Pair.arrays gave for a case."""
    return {name: distance(ours[name], exact[name], np.asarray(theirs[name])) for name in ours}


def kept(arrays, checkpoint):
    """Arrays thinned out as in the fixtures."""
    return {name: keep(name, array, checkpoint) for name, array in arrays.items()}


def keep(name, array, checkpoint):
    """The part of an array that the fixtures keep, or None."""
    kind = name.split(".")[0]
    if kind == "hidden":
        return np.ascontiguousarray(array)
    return thin(name, array, checkpoint) if kind in (*KINDS, "codes") else None


def report(name, found):
    """One line of a case; True if nothing is farther away than the limit."""
    bad = [array for array, d in found.items() if not d.good]
    worst = {}
    for array, d in found.items():  # of the rows
        kind = array.split(".")[0]
        if kind not in worst or d.error > worst[kind].error:
            worst[kind] = d
    what = f"bit_equal={'true' if all(d.equal for d in found.values()) else 'false'}"
    if bad:
        what = f"match=false: {bad[0]}"
    print(f"{name:46s}  {what}  " + " ".join(f"{kind} {d}" for kind, d in worst.items()), flush=True)
    return not bad
