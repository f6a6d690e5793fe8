"""`qwen3tts selftest`: every native kernel against its reference, with timings."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from qwen3tts.cli.console import exit_codes


def selftest(
    backend: Annotated[str, typer.Option("--backend", metavar="cuda|hip", help="Whose kernels to test.")],
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="A GPU, for instance cuda:1.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON, too.")
    ] = None,
    kernel: Annotated[
        list[str] | None, typer.Option("--kernel", metavar="NAME", help="Only this kernel; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random inputs.")] = 0,
) -> None:
    """Compare every kernel of a backend with its reference and time it against the card's own bandwidth.

    Exit code 1 if a kernel fails, 2 if there is no such backend or no GPU."""
    with exit_codes():
        passed = run(backend, device, json_file, kernel, seed)
    if not passed:
        raise typer.Exit(1)


def run(backend: str, device: str | None, json_file: Path | None, kernels: list[str] | None, seed: int) -> bool:
    """Prints a line per case; whether all passed."""
    from qwen3tts.audio.atomic import check_writable, replacing
    from qwen3tts.backends.native import open_native
    from qwen3tts.backends.native.selftest import CaseResult, all_cases, run_selftest
    from qwen3tts.errors import OptionError, nearest

    if json_file is not None:
        check_writable(json_file)
    native = open_native(backend, device)
    cases = all_cases(native)
    known = sorted({case.kernel for case in cases})
    for name in kernels or ():
        if name not in known:
            raise OptionError(f"There is no kernel {name!r}.{nearest(name, known)} There are: {', '.join(known)}.")
    chosen = [case for case in cases if not kernels or case.kernel in kernels]
    print(f"{'kernel':16} {'dtype':9} {'sizes':32} {'error':>10} {'bound':>8} {'time':>10} {'/ floor':>8}")

    def show(result: CaseResult) -> None:
        print(line_of(result), flush=True)

    report: dict[str, Any] = run_selftest(native, chosen, seed=seed, report=show)
    failed = sum(not case["passed"] for case in report["cases"])
    bandwidth = report["copy_gigabytes_per_second"]
    speed = "" if bandwidth is None else f"; a copy on this card moves {bandwidth:.0f} GB/s"
    print(f"{len(report['cases']) - failed} passed, {failed} failed{speed}")
    if json_file is not None:
        with replacing(json_file) as partial:
            partial.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return failed == 0


def line_of(result: Any) -> str:
    """One case as a line of the table."""
    error = "-" if result.error is None else f"{result.error:.3g}"
    time = "" if result.microseconds is None else f"{result.microseconds:.2f} us"
    over = "" if result.time_over_floor is None else f"{result.time_over_floor:.2f}{'' if result.cold else ' L2'}"
    text = (
        f"{result.kernel:16} {result.dtype:9} {result.variant:32} {error:>10} {result.bound:8.3g} {time:>10} {over:>8}"
    )
    return text.rstrip() + ("" if result.passed else f"  FAILED {result.message}".rstrip())
