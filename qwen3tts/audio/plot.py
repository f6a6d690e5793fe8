"""A picture of an utterance: waveform above, mel spectrogram below. Needs matplotlib, the extra `plot`."""

import importlib.util
import os
import warnings

import numpy as np
import numpy.typing as npt

from qwen3tts.audio.atomic import Batch, check_writable, replacing
from qwen3tts.audio.mel import HOP, hz_to_mel, log_mel
from qwen3tts.errors import AudioError

_TICKS_HZ = (0, 500, 1000, 2000, 4000, 8000, 12000)
_RANGE_DB = 80.0
_EAST_ASIAN_FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei")


def check_plot_path(path: str | os.PathLike[str]) -> None:
    """Checks that matplotlib is installed and that a PNG file can be put at `path`. Nothing is written.

    Raises:
        AudioError: what is missing.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise AudioError("a plot needs matplotlib, which is not installed; run: pip install 'qwen3tts[plot]'")
    if not str(path).lower().endswith(".png"):
        raise AudioError(f"cannot write {os.fspath(path)!r}: a plot is written as .png")
    check_writable(path)


def plot_speech(
    path: str | os.PathLike[str],
    samples: npt.NDArray[np.float32],
    sample_rate: int,
    title: str = "",
    *,
    gain: float = 1.0,
    batch: Batch | None = None,
) -> None:
    """Draws waveform and mel spectrogram of `samples` (float [n]) on one time axis into a PNG file.

    `gain` and `batch` are those of write_audio: the picture shows what the audio file holds, clipping included.

    Raises:
        AudioError: no matplotlib, no samples, or the file cannot be written.
    """
    check_plot_path(path)
    if not np.asarray(samples).size:
        raise AudioError("there are no samples to plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A figure of its own, not pyplot's: no window system, no state shared with the caller's plots.
    figure = Figure(figsize=(10, 5.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2, height_ratios=(1, 1.7), width_ratios=(60, 1))
    wave_axes = figure.add_subplot(grid[0, 0])
    mel_axes = figure.add_subplot(grid[1, 0], sharex=wave_axes)
    samples = np.clip(np.asarray(samples, np.float32) * np.float32(gain), np.float32(-1), np.float32(1))
    duration = samples.size / sample_rate

    wave_axes.plot(np.arange(samples.size) / sample_rate, samples, linewidth=0.4, color="#20639b", rasterized=True)
    limit = max(0.01, float(np.abs(samples).max())) * 1.05
    wave_axes.set(xlim=(0, duration), ylim=(-limit, limit), ylabel="amplitude\n(full scale = 1)")
    wave_axes.tick_params(labelbottom=False)
    wave_axes.grid(alpha=0.25)
    if title:
        wave_axes.set_title(_shortened(title), loc="left", fontsize=10, fontfamily=_fonts(), parse_math=False)

    decibels = log_mel(samples, sample_rate).T * (20 / np.log(10))
    top = float(decibels.max())
    end = decibels.shape[1] * HOP / sample_rate
    image = mel_axes.imshow(
        decibels - top, origin="lower", aspect="auto", cmap="magma", vmin=-_RANGE_DB, vmax=0, interpolation="nearest",
        extent=(0, end, 0, hz_to_mel(sample_rate / 2)),
    )  # fmt: skip
    ticks = [hz for hz in _TICKS_HZ if hz <= sample_rate / 2]
    mel_axes.set_yticks([hz_to_mel(hz) for hz in ticks], [f"{hz / 1000:g}" for hz in ticks])
    mel_axes.set(xlim=(0, duration), xlabel="time (s)", ylabel="frequency (kHz, mel scale)")
    bar = figure.colorbar(image, cax=figure.add_subplot(grid[1, 1]))
    bar.set_label("level, dB relative to the peak")
    with replacing(path, batch) as temporary, warnings.catch_warnings():
        # Without an East Asian font on the machine the title shows boxes; the picture is still right.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(temporary, format="png")


def _shortened(title: str) -> str:
    line = " ".join(title.split())
    return line if len(line) <= 110 else line[:109] + "…"


def _fonts() -> list[str]:
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    return ["DejaVu Sans", *(name for name in _EAST_ASIAN_FONTS if name in installed)]
