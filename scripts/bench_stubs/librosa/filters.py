"""See the package."""

from librosa import _missing as mel

__all__ = ["mel"]
