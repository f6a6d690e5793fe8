"""`qwen3tts optimize list|show|check`: optimization passes and profiles."""

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from qwen3tts.cli import parameters as p
from qwen3tts.cli.console import exit_codes, set_up_logging, stderr

app = typer.Typer(
    no_args_is_help=True, help="Optimization passes and profiles: what there is, what is on, whether it is right."
)

Model = Annotated[str, typer.Argument(help="Folder or hub id of a checkpoint.")]


@app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", metavar=p.FLAG, help="Print JSON.")] = False) -> None:
    """List the passes, the profiles of every backend, and the environment switches."""
    with exit_codes():
        from qwen3tts.optimization.profiles import BACKENDS, built_in_profiles
        from qwen3tts.optimization.registry import default_registry
        from qwen3tts.optimization.switches import SWITCHES

        profiles = [profile for backend in BACKENDS for profile in built_in_profiles(backend)]
        if as_json:
            listed = {
                "passes": list(default_registry.names()),
                "profiles": [
                    {"backend": f.backend, "name": f.name, "hash": f.hash, "description": f.description,
                     "max_streams": f.max_streams,
                     "passes": [{"name": q.name, "options": dict(q.options), "requirement": q.requirement}
                                for q in f.passes]}
                    for f in profiles
                ],
                "switches": [vars(s) for s in SWITCHES],
            }  # fmt: skip
            print(json_module.dumps(listed, indent=2))
            return
        print("passes   " + ", ".join(default_registry.names()))
        for found in profiles:
            print(f"profile  {found.backend:5} {found.name:11} {found.hash}  {found.description}")
            for planned in found.passes:
                options = ", ".join(f"{key}={value}" for key, value in planned.options.items())
                print(f"           {planned.name} ({planned.requirement}){': ' if options else ''}{options}")
        for switch in SWITCHES:
            print(
                f"switch   {switch.variable}=1 on {switch.backend}: {switch.pass_name} {switch.option}={switch.value} "
                f"({switch.what})"
            )


@app.command()
def show(
    model: Model,
    profile: p.Profile = None,
    as_json: Annotated[bool, typer.Option("--json", metavar=p.FLAG, help="Print the manifest.")] = False,
    verify: p.Verify = True,
    backend: p.Backend = "auto",
    device: p.Device = None,
    dtype: p.Dtype = None,
    revision: p.Revision = None,
    cache_dir: p.CacheDir = None,
    offline: p.Offline = False,
    verbose: p.Verbose = 0,
) -> None:
    """Load a checkpoint and print which passes are on, which were left off and why, and what their checks said."""
    set_up_logging(verbose)
    with exit_codes():
        import qwen3tts
        from qwen3tts.optimization.apply import checks

        with qwen3tts.load(
            model, backend=backend, device=device, dtype=dtype, revision=revision, cache_dir=cache_dir,
            offline=offline, profile=profile, verify=verify,
        ) as tts:  # fmt: skip
            manifest = tts.optimization_manifest("inference")
            if as_json:
                print("null" if manifest is None else manifest.to_json())
                return
            print(f"profile {tts.profile}")
            for name in tts.profile.switches:
                print(f"switch  {name} is set")
            for line in checks(tts.optimization_result()) or ["no passes: the plain torch model"]:
                print(line)


def _profile_file(profile: str | None) -> dict[str, Path]:
    return {"the profile": Path(profile)} if profile is not None and profile.endswith(".toml") else {}


@app.command()
def check(
    model: Model,
    profile: p.Profile = None,
    frames: Annotated[int, typer.Option(min=2, max=2000, help="Frames to speak per text.")] = 24,
    repeats: Annotated[int, typer.Option(min=1, max=50, help="Timed runs of each, in turn.")] = 3,
    html: Annotated[Path | None, typer.Option(help="Also write one page with plots.", metavar="FILE")] = None,
    json: p.Json = None,
    backend: p.Backend = "auto",
    device: p.Device = None,
    dtype: p.Dtype = None,
    revision: p.Revision = None,
    cache_dir: p.CacheDir = None,
    offline: p.Offline = False,
    verbose: p.Verbose = 0,
) -> None:
    """Compare each pass of a profile with the plain model: codes, audio, speed. What is measured is kept for manifests.

    Exit codes: 0 all equal or within their bounds, 1 a difference, 2 bad input.
    """
    set_up_logging(verbose)
    with exit_codes():
        import qwen3tts
        from qwen3tts.audio.atomic import Batch, check_writable, replacing
        from qwen3tts.cli.optimize_report import figures, page, print_rows, wrong
        from qwen3tts.cli.outputs import check_different, checkpoint_files
        from qwen3tts.optimization.compare import compare
        from qwen3tts.optimization.evidence_store import EvidenceStore
        from qwen3tts.optimization.profiles import find_profile
        from qwen3tts.optimization.switches import apply_switches

        outputs = {name: path for name, path in (("--html", html), ("--json", json)) if path is not None}
        for path in outputs.values():
            check_writable(path)
        check_different(outputs, checkpoint_files(model) | _profile_file(profile))
        where: dict[str, Any] = {"backend": backend, "device": device, "dtype": dtype}
        hub: dict[str, Any] = {"revision": revision, "cache_dir": cache_dir, "offline": offline}
        with qwen3tts.load(model, **where, **hub, profile="reference") as tts:
            wanted = apply_switches(find_profile(profile, tts.backend_name))
            rows = compare(
                tts, wanted, frames=frames, repeats=repeats, progress=lambda line: stderr().print(line),
                store=EvidenceStore(),
            )  # fmt: skip
            facts = figures(tts, model, wanted, rows, frames=frames, repeats=repeats)
        with Batch() as batch:
            if json is not None:
                with replacing(json, batch) as temporary:
                    temporary.write_text(json_module.dumps(facts, indent=2, allow_nan=False) + "\n")
            if html is not None:
                with replacing(html, batch) as temporary:
                    temporary.write_text(page(facts), encoding="utf-8")
        print_rows(facts)
        for path in outputs.values():
            print(f"wrote {path}")
        bad = [row.name for row in rows if wrong(row)]
    raise typer.Exit(1 if bad else 0)
