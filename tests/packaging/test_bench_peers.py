"""scripts/bench_peers.py: every runtime in turn, and one that fails is named and left out."""

import json
import sys

import bench_peers
import pytest

WORKER = """
import argparse, json, sys
parser = argparse.ArgumentParser()
parser.add_argument("role")
for name in ("model", "device", "dtype", "profile", "rows", "frames"):
    parser.add_argument(f"--{name}")
a = parser.parse_args()
def answer(**what):
    print(json.dumps(what), flush=True)
if a.role == "faster-qwen3-tts" and a.model == "not-there":
    answer(missing="ImportError: no such package")
    sys.exit()
answer(ready={a.role: "1.0"}, load_seconds=0.5)
for line in sys.stdin:
    seed, frames = json.loads(line)["run"], int(a.frames)
    with open(a.profile, "a") as order:
        order.write(f"{seed} {a.role}\\n")
    if a.role == "qwen-tts" and a.model == "dies" and seed == 1:
        sys.exit(3)
    answer(frames=frames, seconds=0.002 * (1 + seed) * frames, with_audio=0.01 * frames, memory=10**6)
"""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """bench(model, ...) -> exit code, what the JSON says of the runtimes, who ran in which order."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(bench_peers, "WORKER", worker)

    def run(*arguments):
        order, found = tmp_path / "order", tmp_path / "out.json"
        order.write_text("")
        command = ["bench_peers.py", *arguments, "--profile", str(order), "--json", str(found)]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            bench_peers.main()
        return ended.value.code, json.loads(found.read_text())["peers"], order.read_text().splitlines()

    return run


def test_all_speak_in_turns_with_frames_of_their_own(bench):
    code, peers, order = bench("model", "--frames", "50", "--official-frames", "20", "--runs", "2")
    names = list(bench_peers.NAMES)
    assert (code, list(peers)) == (0, names)
    assert order == [f"{turn} {name}" for turn in range(3) for name in names[turn:] + names[:turn]]
    for name, found in peers.items():
        frames = 20 if name == "qwen-tts" else 50
        assert (found["frames_asked"], found["frames"]) == (frames, [frames] * 2)
        assert found["ms_per_frame_runs"] == [4.0, 6.0]  # the first run is not counted
        assert found["ms_per_frame"] == 5.0
        assert found["ready"] == {name: "1.0"}


def test_what_cannot_load_or_dies_is_left_out(bench):
    code, peers, order = bench("not-there", "--runs", "1")
    assert (code, peers["faster-qwen3-tts"]) == (0, {"missing": "ImportError: no such package"})
    assert len(order) == 4
    code, peers, order = bench("dies", "--runs", "2")
    assert (code, peers["qwen-tts"]) == (0, {"missing": "its process ended with code 3"})
    assert [len(peers[name]["frames"]) for name in ("qwen3tts", "faster-qwen3-tts")] == [2, 2]
    code, peers, _ = bench("not-there", "--only", "faster-qwen3-tts")
    assert code == 1


@pytest.mark.parametrize("wrong", [["--only", "slower"], ["--official-frames", "0"], ["--json", "no/such/folder/x"]])
def test_wrong_arguments(monkeypatch, wrong):
    monkeypatch.setattr(sys, "argv", ["bench_peers.py", "model", *wrong])
    with pytest.raises(SystemExit, match="2"):
        bench_peers.main()


def test_this_project_speaks_as_many_frames_as_asked(tiny_checkpoint, tmp_path, monkeypatch):
    found = tmp_path / "out.json"
    model = tiny_checkpoint(eos_gain=0.0)
    command = ["bench_peers.py", str(model), "--only", "qwen3tts", "--device", "cpu", "--dtype", "float32"]
    monkeypatch.setattr(sys, "argv", [*command, "--profile", "reference", "--frames", "3", "--json", str(found)])
    monkeypatch.setenv("PYTHONPATH", str(bench_peers.WORKER.parents[1]))
    with pytest.raises(SystemExit, match="0"):
        bench_peers.main()
    (ours,) = json.loads(found.read_text())["peers"].values()
    assert (ours["frames"], ours["passes"]) == ([3] * 5, {})
    assert ours["ready"].keys() == {"qwen3tts", "torch"}
