"""`qwen3tts bench` from outside."""

import json

from qwen3tts.cli.bench import lines as table


def test_table_and_json(invoke, checkpoint, tmp_path):
    file = tmp_path / "out.json"
    done = invoke(
        "qwen3tts", "bench", checkpoint, "--backend", "cpu", "--batch", "1,2", "--frames", 2, "--iterations", 1,
        "--stages", "--bandwidth", 20, "--json", file,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    report = json.loads(file.read_text())
    assert [row["rows"] for row in report["speed"]["batches"]] == [1, 2]
    assert report["stages"]["bytes_per_second"] == 20_000_000_000
    assert report["machine"]["profile"]["name"] == "default"
    lines = done.stdout.splitlines()
    assert lines[0].startswith("0b6 custom_voice, float32, torch, profile default, cpu; loaded in ")
    assert lines[1].startswith("first codes ")
    assert [line.split()[0] for line in lines[3:5]] == ["1", "2"]
    assert not any("ended early" in line for line in lines)
    cut = {**report["speed"]["batches"][1], "rows_that_ended_early": 1}
    changed = report | {"speed": report["speed"] | {"batches": [report["speed"]["batches"][0], cut]}}
    assert table(changed)[5] == "      of these, 1 ended early: later frames had fewer texts"
    for name in ("prepare", "prefill", "predictor", "projection", "sampling", "step_input", "talker"):
        assert sum(line.split()[0] == name for line in lines) == 2, name
    assert done.stderr.splitlines() == ["1 row", "2 rows", "stages of 1 row", "stages of 2 rows"]


def test_bad_input(invoke, checkpoint, tmp_path):
    for arguments, message in (
        (["--batch", "1,x"], "--batch is '1,x'; expected numbers"),
        (["--batch", "0"], "expected 1 or more"),
        (["--frames", "0"], "frames is 0"),
        (["--bandwidth", "-3"], "expected GB/s above 0"),
        (["--json", tmp_path / "no" / "x.json"], "no"),
    ):
        done = invoke("qwen3tts", "bench", checkpoint, "--backend", "cpu", *arguments)
        assert done.exit_code == 2, arguments
        assert message in done.stderr
    assert not list(tmp_path.glob("*.json"))
