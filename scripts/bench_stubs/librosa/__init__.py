"""Stands in for librosa, which qwen-tts imports and needs for reference audio alone."""


def _missing(*_arguments, **_options):
    raise RuntimeError("librosa is not installed: reference audio cannot be read")


load = resample = _missing
