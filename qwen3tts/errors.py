"""Every exception this package raises on purpose.

One tree: catch Qwen3TTSError for all of it. Classes for a wrong argument are ValueErrors too, so that code written for
other libraries keeps working. A message says what was wrong, what was expected and how to mend it.
"""

import difflib
from collections.abc import Iterable
from itertools import islice


class Qwen3TTSError(Exception):
    """Base of all errors of this package."""


class CheckpointError(Qwen3TTSError):
    """A checkpoint cannot be used."""


class DownloadError(CheckpointError):
    """A checkpoint cannot be found or downloaded."""


class ConfigError(CheckpointError):
    """config.json or one of its neighbours lacks a key or contradicts itself."""


class WeightsError(CheckpointError):
    """A weight file is damaged, or its tensors are not those the config asks for."""


class TokenizerError(CheckpointError):
    """The checkpoint's vocabulary is missing or damaged."""


class OptionError(Qwen3TTSError, ValueError):
    """An option is unknown or out of range."""


class TextError(Qwen3TTSError, ValueError):
    """A text cannot be spoken: blank, not a string, not valid Unicode, too long."""


class VoiceError(Qwen3TTSError, ValueError):
    """A voice, language or instruction does not exist or does not fit the model."""


class CapacityError(Qwen3TTSError):
    """A request does not fit into the positions, streams or memory that the runtime was given."""


class BackendError(Qwen3TTSError):
    """A backend or device that was asked for is not there."""


class OptimizationError(Qwen3TTSError):
    """Base of what can go wrong with optimization passes."""


class OptimizationPlanError(OptimizationError, ValueError):
    """A plan cannot be read: it is empty, names an unknown pass or one twice, or a declaration is incomplete."""


class OptimizationStateError(OptimizationError, RuntimeError):
    """Not now: another plan is active, none is, a stream is open, or a pass of the plan cannot be undone."""


class OptimizationCompatibilityError(OptimizationError, ValueError):
    """A pass cannot work on this model, device, dtype or installation. Nothing was changed."""


class OptimizationApplicationError(OptimizationError, RuntimeError):
    """A pass failed after changes had begun, and the whole plan was undone.

    rollback_errors: what else went wrong meanwhile, such as a pass that could not undo itself. intact: the model is
    what it was all the same, because it was put back without the passes' help; False: load it again."""

    def __init__(
        self, pass_id: str, cause: BaseException, rollback_errors: Iterable[BaseException] = (), intact: bool = True
    ) -> None:
        self.pass_id, self.cause, self.rollback_errors = pass_id, cause, tuple(rollback_errors)
        self.intact = intact
        text = f"The optimization pass {pass_id!r} failed: {type(cause).__name__}: {cause}"
        listed = "; ".join(f"{type(error).__name__}: {error}" for error in self.rollback_errors)
        if not intact:
            text += f" | The model could not be put back ({listed}): load the model again."
        elif listed:
            text += f" | Errors while the plan was undone ({listed}); the model was put back all the same."
        super().__init__(text)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.pass_id, self.cause, self.rollback_errors, self.intact)


class KernelArgumentError(Qwen3TTSError, ValueError):
    """A tensor does not fit the native kernel it was given to."""


class NumericsError(Qwen3TTSError):
    """The model computed something that is not a number."""


class AudioError(Qwen3TTSError, OSError):
    """An audio file cannot be written or read."""


MAX_FOREIGN = 200


def shortened(error: object) -> str:
    """What an error of another library says, in at most MAX_FOREIGN characters: some quote a damaged file."""
    text = str(error).strip()
    return text if len(text) <= MAX_FOREIGN else text[: MAX_FOREIGN - 3] + "..."


_MAX_CHOICES = 2000
_MAX_NAME = 200
"""Bounds of what `nearest` compares: a damaged file can offer any number of names of any length."""


def nearest(name: object, choices: Iterable[str]) -> str:
    """ " Did you mean 'x'?" for the closest of `choices`, or "" when none is close."""
    wanted = str(name).lower()
    if len(wanted) > _MAX_NAME:
        return ""
    short = (choice for choice in islice(choices, _MAX_CHOICES) if len(choice) <= _MAX_NAME)
    close = difflib.get_close_matches(wanted, short, n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
