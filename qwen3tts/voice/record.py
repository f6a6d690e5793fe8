"""What a cloned voice consists of, checked: x-vector, reference codes, transcript, fingerprint."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qwen3tts.errors import TextError, VoiceError, shortened
from qwen3tts.text.tokenizer import clean_text

FloatArray = npt.NDArray[np.float32]
CodeArray = npt.NDArray[np.int16]

CODEBOOKS = 16
MAX_X_VECTOR = 1 << 14
"""far above any talker's width (1024 and 2048)"""
MAX_REFERENCE_FRAMES = 7500
"""10 minutes; a reference of 3 to 15 seconds is usual"""
MAX_TRANSCRIPT = 20_000
"""characters; fast speech has some 10,000 in ten minutes"""
MAX_FINGERPRINT = 200


@dataclass(frozen=True, eq=False)
class VoiceRecord:
    """The contents of a voice file. Reference codes and transcript are both there or both None."""

    x_vector: FloatArray
    """[enc_dim]"""
    ref_codes: CodeArray | None = None
    """[R, 16]"""
    ref_text: str | None = None
    fingerprint: str | None = None


def make_record(
    x_vector: object, ref_codes: object = None, ref_text: object = None, fingerprint: object = None
) -> VoiceRecord:
    """Checks everything; raises VoiceError."""
    if (ref_codes is None) != (ref_text is None):
        missing, there = ("transcript", "reference codes") if ref_text is None else ("reference codes", "transcript")
        raise VoiceError(f"A voice with a recording has codes and a transcript; here are {there}, but no {missing}.")
    return VoiceRecord(
        check_x_vector(x_vector),
        None if ref_codes is None else check_ref_codes(ref_codes),
        None if ref_text is None else check_ref_text(ref_text),
        check_fingerprint(fingerprint),
    )


def check_x_vector(values: object) -> FloatArray:
    """Checks and copies: float32 [enc_dim], finite, read-only."""
    array = _array(values, "An x-vector", "[enc_dim]", "tensor.detach().float().cpu().numpy()")
    if array.dtype.kind not in "fiu":
        raise VoiceError(f"An x-vector holds numbers, not dtype {array.dtype}.")
    if array.ndim != 1 or not 0 < array.size <= MAX_X_VECTOR:
        raise VoiceError(f"An x-vector has the shape [enc_dim], not {list(array.shape)}.")
    with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused
        vector = np.array(array, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(vector))
    if bad.size:
        raise VoiceError(
            f"An x-vector has {bad.size} of {vector.size} values that are not finite float32 numbers, the "
            f"first at index {bad[0]}: {array[bad[0]]}."
        )
    vector.flags.writeable = False
    return vector


def check_ref_codes(values: object) -> CodeArray:
    """Checks and copies: int16 [R, 16] from 0 up, R from 1 to MAX_REFERENCE_FRAMES, read-only."""
    array = _array(values, "Reference codes", f"[frames, {CODEBOOKS}]", "tensor.cpu().numpy()")
    if array.dtype.kind not in "iu":
        raise VoiceError(f"Reference codes are whole numbers, not dtype {array.dtype}.")
    if array.ndim != 2 or array.shape[1] != CODEBOOKS or not 0 < len(array) <= MAX_REFERENCE_FRAMES:
        raise VoiceError(
            f"Reference codes have the shape [frames, {CODEBOOKS}] with 1 to {MAX_REFERENCE_FRAMES} frames, not "
            f"{list(array.shape)}."
        )
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > np.iinfo(np.int16).max:
        frame, book = np.argwhere((array < 0) | (array > np.iinfo(np.int16).max))[0]
        raise VoiceError(f"Reference code [{frame}, {book}] is {array[frame, book]}, no code of a codec.")
    codes = np.array(array, dtype=np.int16, order="C")
    codes.flags.writeable = False
    return codes


def check_ref_text(text: object) -> str:
    """The transcript without white space at its ends; at most MAX_TRANSCRIPT characters."""
    try:
        cleaned = clean_text(text)  # type: ignore[arg-type]  # checks the type itself
    except TextError as error:
        raise VoiceError(f"The transcript of the recording cannot be used. {error}") from None
    if len(cleaned) > MAX_TRANSCRIPT:
        raise VoiceError(
            f"The transcript of the recording has {len(cleaned):,} characters, more than ten minutes of speech hold; "
            f"at most {MAX_TRANSCRIPT:,}."
        )
    return cleaned


def check_fingerprint(fingerprint: object) -> str | None:
    """A short string or None."""
    if fingerprint is None:
        return None
    if not isinstance(fingerprint, str) or not 0 < len(fingerprint) <= MAX_FINGERPRINT or not fingerprint.isprintable():
        raise VoiceError(f"A fingerprint is a string of 1 to {MAX_FINGERPRINT} characters, not {fingerprint!r:.60}.")
    return fingerprint


def _array(values: object, what: str, shape: str, recipe: str) -> npt.NDArray[Any]:
    convert: Callable[[object], npt.NDArray[Any]] = np.asarray
    try:
        return convert(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; torch tensors in bf16 or with a gradient
        raise VoiceError(
            f"{what} cannot be made of a {type(values).__name__} ({shortened(error)}). Give numbers of shape "
            f"{shape}; of a torch tensor, {recipe}."
        ) from None
