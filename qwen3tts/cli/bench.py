"""`qwen3tts bench`: how fast a model is here, and where the time goes."""

import json as json_module
from typing import Annotated, Any

import typer

from qwen3tts.cli import parameters as p
from qwen3tts.cli.console import exit_codes, set_up_logging, stderr

MEASURE = "Measurement"


def bench(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a checkpoint.")],
    batch: Annotated[
        str, typer.Option(help="Numbers of texts side by side, for instance 1,8,32.", rich_help_panel=MEASURE)
    ] = "1",
    frames: Annotated[int, typer.Option(help="Frames timed in each iteration.", rich_help_panel=MEASURE)] = 100,
    context: Annotated[
        int, typer.Option(help="Positions that a text has when timing begins.", rich_help_panel=MEASURE)
    ] = 0,
    warmup: Annotated[int, typer.Option(help="Iterations before the timed ones.", rich_help_panel=MEASURE)] = 1,
    iterations: Annotated[int, typer.Option(help="Timed ones; the median counts.", rich_help_panel=MEASURE)] = 5,
    stages: Annotated[
        bool, typer.Option("--stages", metavar=p.FLAG, help="Also where a frame's time goes.", rich_help_panel=MEASURE)
    ] = False,
    bandwidth: Annotated[
        float | None,
        typer.Option(help="GB/s for the floor under the stages; measured if left out.", rich_help_panel=MEASURE),
    ] = None,
    json: p.Json = None,
    profile: p.Profile = None,
    verify: p.Verify = True,
    backend: p.Backend = "auto",
    device: p.Device = None,
    dtype: p.Dtype = None,
    revision: p.Revision = None,
    cache_dir: p.CacheDir = None,
    offline: p.Offline = False,
    verbose: p.Verbose = 0,
) -> None:
    """Time frames, first codes and prefill of a checkpoint, for batches of some sizes."""
    set_up_logging(verbose)
    with exit_codes():
        from qwen3tts.api import load
        from qwen3tts.audio.atomic import check_writable, replacing
        from qwen3tts.benchmark.machine import describe
        from qwen3tts.benchmark.speed import BenchSettings, measure
        from qwen3tts.benchmark.stages import measure_stages
        from qwen3tts.errors import OptionError
        from qwen3tts.options import RuntimeOptions

        settings = BenchSettings(_numbers(batch), frames, context, warmup, iterations)
        if bandwidth is not None and not 0 < bandwidth < 1e6:
            raise OptionError(f"--bandwidth is {bandwidth:g}; expected GB/s above 0.")
        if json is not None:
            check_writable(json)
        tts = load(
            model, backend=backend, device=device, dtype=dtype, profile=profile, verify=verify, revision=revision,
            cache_dir=cache_dir, offline=offline, runtime=RuntimeOptions(max_streams=max(settings.batches)),
        )  # fmt: skip
        console = stderr()
        with tts:
            report: dict[str, Any] = {"machine": describe(tts), "speed": measure(tts, settings, console.print)}
            if stages:
                each = None if bandwidth is None else 1e9 * bandwidth
                report["stages"] = measure_stages(tts, settings, bandwidth=each, progress=console.print)
        print("\n".join(lines(report)))
        if json is not None:
            with replacing(json) as partial:
                partial.write_text(json_module.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _numbers(text: str) -> tuple[int, ...]:
    from qwen3tts.errors import OptionError

    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise OptionError(f"--batch is {text!r}; expected numbers separated by commas, for instance 1,8.") from error


def lines(report: dict[str, Any]) -> list[str]:
    """The report as a table."""
    machine, speed = report["machine"], report["speed"]
    model, one = machine["model"], speed["one_row"]
    found = [
        f"{model['size']} {model['type']}, {model['dtype']}, {machine['backend']}, "
        f"profile {machine['profile']['name']}, {machine['device']}; loaded in {machine['load_seconds']:.2f} s",
        f"first codes {one['first_codes_ms']:.2f} ms, prefill {one['prefill_ms']:.2f} ms "
        f"({one['prompt_positions']} positions)",
        f"{'texts':>5} {'ms/frame':>10} {'frames/s':>10} {'RTF':>8} {'RTF+audio':>10} {'peak MB':>9}",
    ]
    for row in speed["batches"]:
        peak = row.get("device_used_bytes", row.get("process_peak_bytes", 0)) / 1e6
        found.append(
            f"{row['rows']:5} {row['ms_per_frame']:10.3f} {row['frames_per_second']:10.1f} {row['rtf']:8.4f} "
            f"{row['rtf_with_audio']:10.4f} {peak:9.0f}"
        )
        if row["rows_that_ended_early"]:
            found.append(f"      of these, {row['rows_that_ended_early']} ended early: later frames had fewer texts")
    for row in report.get("stages", {}).get("batches", ()):
        found += _stage_lines(row)
    return found


def _stage_lines(row: dict[str, Any]) -> list[str]:
    over, floor = row["time_over_floor"], row["floor_ms"]
    head = f"stages of {row['rows']} text{'s' if row['rows'] > 1 else ''}: {row['how']}"
    if "launches_per_frame" in row:
        head += f"; {row['launches_per_frame']:g} launches a frame"
    found = [head, f"  {'prepare':12} {row['prepare_ms']:9.3f} ms", f"  {'prefill':12} {row['prefill_ms']:9.3f} ms"]
    for name, value in row["ms_per_frame"].items():
        times = f"   {over[name]:6.2f} x the floor" if name in over else ""
        found.append(f"  {name:12} {value:9.3f} ms a frame{times}")
        for inside, part in row.get(f"{name}_ms", {}).items():
            found.append(f"    {inside:10} {part:9.3f}")
    found.append(
        f"  {row['bytes_per_frame'] / 1e6:.1f} MB a frame, {sum(floor.values()):.3f} ms at the memory's speed"
    )
    return found
