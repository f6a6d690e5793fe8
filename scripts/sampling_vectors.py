#!/usr/bin/env python3
"""Writes tests/model/sampling_vectors.json: known answers of the sampling definition, for this model and for kernels.

Run it only when the definition is meant to change; the tests compare with the committed file."""

import argparse
import json
import struct
from pathlib import Path

import numpy as np
import torch

from qwen3tts.model.philox import random_words
from qwen3tts.model.sampling import SamplingParams, exp_weights, pick_philox

FILE = Path(__file__).resolve().parent.parent / "tests" / "model" / "sampling_vectors.json"
X = [
    0.0,
    -1e-7,
    -0.001,
    -0.3465,
    -0.3466,
    -0.6931472,
    -1.0,
    -2.5,
    -3.1415927,
    -7.77,
    -12.0,
    -16.0,
    -16.63,
    -16.64,
    -17.0,
]
SETTINGS = [
    dict(size=3072, temperature=0.9, top_k=50, top_p=1.0, codebook=0),
    dict(size=2048, temperature=0.9, top_k=50, top_p=1.0, codebook=1),
    dict(size=2048, temperature=1.3, top_k=256, top_p=0.9, codebook=15),
    dict(size=2048, temperature=0.7, top_k=0, top_p=0.8, codebook=7),
    dict(size=1088, temperature=1.0, top_k=1, top_p=1.0, codebook=3),
    dict(size=64, temperature=0.5, top_k=5, top_p=0.5, codebook=2),
]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    weights = [
        dict(x=struct.pack(">f", x).hex(), weight=int(exp_weights(torch.tensor([x], dtype=torch.float32)))) for x in X
    ]
    picks = []
    for number, setting in enumerate(SETTINGS):
        seed = 2**40 * number + 12345
        logits = (np.round(np.random.default_rng(number).standard_normal(setting["size"]) * 12) / 4).astype(np.float32)
        params = SamplingParams(True, setting["temperature"], setting["top_k"], setting["top_p"])
        words = random_words(seed, 0, 24, 16)[:, setting["codebook"]]
        picked = [int(pick_philox(torch.from_numpy(logits), params, torch.tensor(int(word)))) for word in words]
        picks.append(dict(setting, logits_seed=number, seed=seed, picked=picked))
    FILE.write_text(json.dumps(dict(weights=weights, picks=picks), indent=1) + "\n")


if __name__ == "__main__":
    main()
