"""What `qwen3tts optimize check` prints and writes."""

import datetime
import html
import platform
from typing import Any

import torch

from qwen3tts._version import __version__
from qwen3tts.optimization.compare import Row
from qwen3tts.optimization.evidence_store import driver_version
from qwen3tts.optimization.profiles import Profile

AUDIO_BOUND = 1e-4
"""where the codes are equal, the largest difference of samples that counts as the same audio"""


def wrong(row: Row) -> bool:
    """Whether a pass that was on gave something else than the plain model.

    Codes must be equal, unless the pass has a check of its own: between kernels that sum in another order a draw can
    fall on the other side of an edge, and the check bounds that order's error."""
    if row.status != "on":
        return False
    if row.evidence is not None and not row.evidence.passed:
        return True
    if not row.equal:
        return row.evidence is None
    return row.audio_error is None or row.audio_error > AUDIO_BOUND


def figures(tts: Any, model: str, profile: Profile, rows: list[Row], *, frames: int, repeats: int) -> dict[str, Any]:
    """Everything, as JSON: the machine, the plan, a row per pass."""
    device: torch.device = tts.device
    on_gpu = device.type == "cuda"
    return {
        "model": model,
        "backend": tts.backend_name,
        "profile": profile.name,
        "profile_hash": profile.hash,
        "switches": list(profile.switches),
        "device": torch.cuda.get_device_name(device) if on_gpu else f"{platform.processor() or platform.machine()}",
        "driver": driver_version() if on_gpu else None,
        "qwen3tts": __version__,
        "torch": str(torch.__version__),
        "dtype": str(tts.dtype),
        "frames": frames,
        "repeats": repeats,
        "clock": "wall clock of generate(), codec included, after one request of warm-up; medians, runs in turn",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "rows": [row.to_json() | {"wrong": wrong(row)} for row in rows],
    }


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table: pass, codes, audio, check, speed."""
    if row["status"] != "on":
        return [row["name"], row["status"], "", "", ""]
    codes = f"{row['equal_frames']} of {row['frames']} frames equal"
    if row["equal"]:
        codes = f"equal ({row['frames']} frames)"
    elif row["first_difference"]:
        codes += f"; {row['first_difference']}"
    evidence = row["evidence"]
    check = ""
    if evidence is not None:
        error = "not a number" if evidence["error"] is None else f"{evidence['error']:.2g}"
        check = f"{error} of {evidence['bound']:.2g}"
    audio = "" if row["audio_error"] is None else f"{row['audio_error']:.1e}"
    speed = "" if row["ratio"] is None else f"{row['ratio']:.2f}x"
    return [row["name"], codes, audio, check, speed]


HEAD = ["pass", "codes", "audio error", "check", "speed"]


def print_rows(facts: dict[str, Any]) -> None:
    """The table, as plain text."""
    print(f"{facts['model']}: profile {facts['profile']} for {facts['backend']} ({facts['profile_hash']})")
    print(f"{facts['device']}, {facts['dtype']}, torch {facts['torch']}; {facts['clock']}")
    lines = [HEAD, *(cells(row) for row in facts["rows"])]
    full = [line for line in lines if any(line[2:])]  # a reason why a pass is off may be as long as it likes
    widths = [max(len(line[i]) for line in full) for i in range(len(HEAD))]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def page(facts: dict[str, Any]) -> str:
    """One self-contained page: the table, and bars for speed and for error over bound."""
    lines = []
    for row in facts["rows"]:
        marked = ' class="wrong"' if row["wrong"] else ""
        lines.append(f"<tr{marked}>" + "".join(f"<td>{html.escape(text)}</td>" for text in cells(row)) + "</tr>")
    machine = "".join(
        f"<dt>{html.escape(key)}</dt><dd>{html.escape(str(value))}</dd>"
        for key, value in facts.items()
        if key != "rows"
    )
    speed = [(row["name"], row["ratio"]) for row in facts["rows"] if row["ratio"] is not None]
    error = [
        (row["name"], row["evidence"]["error"] / row["evidence"]["bound"])
        for row in facts["rows"]
        if row["evidence"] is not None and row["evidence"]["error"] is not None and row["evidence"]["bound"] > 0
    ]
    head = "".join(f"<th>{name}</th>" for name in HEAD)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>qwen3tts: {html.escape(facts["profile"])}</title>
<style>
body {{ font: 15px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; width: 100% }} td, th {{ border-bottom: 1px solid #ccc; padding: .3rem .6rem;
text-align: left; vertical-align: top }} .wrong {{ background: #fdd }}
dl {{ display: grid; grid-template-columns: 8rem 1fr; font-size: 13px }} dd {{ margin: 0 }}
</style></head><body>
<h1>Profile {html.escape(facts["profile"])} on {html.escape(facts["backend"])}</h1>
<table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>
{_bars("Speed, times the plain model", speed, "line at 1: as fast as the plain model")}
{_bars("Error of each check over its bound", error, "line at 1: the bound")}
<h2>Where</h2><dl>{machine}</dl>
</body></html>
"""


def _bars(title: str, values: list[tuple[str, float]], note: str) -> str:
    if not values:
        return ""
    top = max(1.0, *(value for _, value in values)) * 1.1
    left, width, height = 170, 560, 26
    one = left + width / top
    bars = []
    for i, (name, value) in enumerate(values):
        y, length = i * height + 4, width * max(value, 0.0) / top
        bars.append(
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{html.escape(name)}</text>'
            f'<rect x="{left}" y="{y}" width="{length:.1f}" height="18" fill="#47a"/>'
            f'<text x="{left + length + 5:.1f}" y="{y + 14}">{value:.3g}</text>'
        )
    tall = len(values) * height + 8
    return (
        f'<h2>{title}</h2><svg role="img" aria-label="{title}" viewBox="0 0 {left + width + 80} {tall}" font-size="13" '
        f'width="100%">{"".join(bars)}<line x1="{one:.1f}" x2="{one:.1f}" y1="0" y2="{tall}" stroke="#a33" '
        f'stroke-dasharray="4 3"/></svg><p>{note}</p>'
    )
