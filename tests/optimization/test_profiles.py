"""Profiles: strict TOML in, plans with a hash out; environment switches change options visibly."""

import math
import random
from pathlib import Path

import pytest

from qwen3tts.errors import OptionError
from qwen3tts.optimization.profiles import (
    BACKENDS,
    NAMES,
    PlannedPass,
    Profile,
    built_in_profiles,
    find_profile,
    parse_profile,
)
from qwen3tts.optimization.registry import default_registry
from qwen3tts.optimization.switches import SWITCHES, apply_switches

TEXT = """
[profile]
name = "mine"
backend = "cuda"
description = "a test"

[[pass]]
name = "custom-kernels"
requirement = "required"
options = { norms = true, sampler = false }

[[pass]]
name = "compile"
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_built_in_profiles_exist_and_name_passes_that_exist(backend: str) -> None:
    known = default_registry.names()
    profiles = built_in_profiles(backend)
    assert tuple(p.name for p in profiles) == NAMES
    for profile in profiles:
        assert profile.backend == backend
        assert profile.description
        for planned in profile.passes:
            assert planned.name in known
            default_registry.create(planned.name, **planned.options)
    assert profiles[0].passes == ()


def test_default_is_taken_when_nothing_is_asked_for() -> None:
    assert find_profile(None, "cuda") == find_profile("default", "cuda")
    assert find_profile(None, "cpu").backend == "torch"


def test_file_of_ones_own(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    profile = find_profile(path, "cuda")
    assert [p.name for p in profile.passes] == ["custom-kernels", "compile"]
    assert [p.requirement for p in profile.passes] == ["required", "auto"]
    assert dict(profile.passes[0].options) == {"norms": True, "sampler": False}
    assert find_profile(str(path), "cuda") == profile
    with pytest.raises(OptionError, match="for the backend 'cuda', but the backend here is 'hip'"):
        find_profile(path, "hip")


def test_options_cannot_be_changed_afterwards() -> None:
    options = {"norms": True}
    planned = parse_profile(TEXT, "text").passes[0]
    with pytest.raises(TypeError):
        planned.options["norms"] = False  # type: ignore[index]
    assert options == {"norms": True}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[profile]", "[profil]"), "the key 'profil' is unknown. Did you mean 'profile'"),
        (('description = "a test"', 'descripton = "a"'), "'descripton' is unknown. Did you mean 'description'"),
        (('requirement = "required"', 'requirment = "required"'), "pass 1: the key 'requirment'"),
        (('requirement = "required"', 'requirement = "maybe"'), "expected 'auto' or 'required'"),
        (('backend = "cuda"', 'backend = "rocm"'), "backend is 'rocm'; expected one of torch, cuda, hip"),
        (('name = "mine"', "name = 3"), "name is 3; expected a text"),
        (('name = "compile"', 'name = "custom-kernels"'), "has the pass 'custom-kernels' twice"),
        (("norms = true", "norms = [1]"), r"option norms is \[1\]"),
        (("norms = true", "norms = nan"), "option norms is nan"),
        (("options = {", "options = 3 #"), "options is 3; expected a table"),
        (("[[pass]]", "[pass]"), "not valid TOML|written as"),
        (('name = "compile"', ""), "pass 2: name is None"),
        (("[profile]", "profile = 3\n[x]"), "unknown|no table"),
        (('name = "mine"', 'name = "mine'), "not valid TOML"),
        (("norms = true", "norms = " + "9" * 5000), "not valid TOML"),
        (("norms = true", "norms = 0x" + "f" * 6000), "option norms is an integer of too many digits"),
        (("norms = true", "norms = [0x" + "f" * 6000 + "]"), "option norms is an integer of too many digits"),
        (("norms = true", f"norms = {2**63}"), f"option norms is {2**63}; expected a number"),
        (('name = "mine"', "name = 0x" + "f" * 6000), "name is an integer of too many digits"),
        (('requirement = "required"', "requirement = 0x" + "f" * 6000), "requirement is an integer of too many"),
        (("options = {", "options = 0x" + "f" * 6000 + "#"), "options is an integer of too many digits"),
    ],
)
def test_what_is_wrong_is_said(change: tuple[str, str], message: str) -> None:
    assert change[0] in TEXT
    with pytest.raises(OptionError, match=message):
        parse_profile(TEXT.replace(*change), "mine.toml")


def test_files_that_are_no_profiles(tmp_path) -> None:
    big, binary = tmp_path / "big.toml", tmp_path / "binary.toml"
    big.write_bytes(b"#" * 200_000)
    binary.write_bytes(b"\xff\xfe\x00")
    for path, message in [
        (big, "larger than"),
        (binary, "not UTF-8"),
        (tmp_path / "none.toml", "does not exist"),
        (tmp_path, "There is no profile"),
        ("lowlatency", "Did you mean 'low-latency'"),
    ]:
        with pytest.raises(OptionError, match=message):
            find_profile(path, "cuda")


@pytest.mark.parametrize(
    "value", [5, True, [], {}, b"default", b"x.toml", 1.5, object(), 10**5000], ids=lambda v: type(v).__name__
)
def test_what_is_no_name_of_a_profile(value) -> None:
    with pytest.raises(OptionError, match=r"profile is .*; expected one of reference, default"):
        find_profile(value, "cpu")


def test_path_is_a_file_even_if_it_is_called_like_a_profile() -> None:
    assert find_profile("default", "cpu").name == "default"
    with pytest.raises(OptionError, match="There is no profile 'default'"):
        find_profile(Path("default"), "cpu")


@pytest.mark.parametrize(
    "value", [math.nan, 2**63, 10**5000, -(2**63) - 1, [1], b"x", {"a": 1}], ids=lambda v: type(v).__name__
)
def test_options_that_no_profile_can_hold(value) -> None:
    with pytest.raises(OptionError, match="option x is"):
        PlannedPass("compile", {"x": value})


def test_largest_options_have_a_hash() -> None:
    options = {"a": 2**63 - 1, "b": -(2**63), "c": 1e308, "d": "\ud800", "e": None}
    assert len(Profile("mine", "torch", "", (PlannedPass("compile", options),)).hash) == 16


def test_hash_changes_with_what_is_done_and_with_nothing_else() -> None:
    profile = parse_profile(TEXT, "a")
    assert parse_profile(TEXT.replace("a test", "another text") + "\n# comment\n", "b").hash == profile.hash
    hashes = {profile.hash}
    for change in [("norms = true", "norms = false"), ('"required"', '"auto"'), ('"compile"', '"codec-kernels"')]:
        hashes.add(parse_profile(TEXT.replace(*change), "c").hash)
    swapped = parse_profile(TEXT, "a")
    hashes.add(type(swapped)(swapped.name, swapped.backend, "", swapped.passes[::-1]).hash)
    assert len(hashes) == 5


def test_streams_of_a_profile(tiny_checkpoint) -> None:
    import qwen3tts

    with_streams = TEXT.replace('"a test"', '"a test"\nmax_streams = 3').replace("cuda", "torch")
    profile, without = parse_profile(with_streams, "a"), parse_profile(TEXT.replace("cuda", "torch"), "b")
    assert (profile.max_streams, without.max_streams) == (3, None)
    assert profile.hash != without.hash
    for bad in ("0", "true", "1.5", '"3"', "-1"):
        with pytest.raises(OptionError, match="max_streams is .*; expected a whole number from 1 up"):
            parse_profile(with_streams.replace("= 3", f"= {bad}"), "c")
    few, given = Profile("few", "torch", "", (), max_streams=2), qwen3tts.RuntimeOptions(max_streams=5)
    folder = tiny_checkpoint()
    for runtime, expected in ((None, 2), (qwen3tts.RuntimeOptions(), 2), (given, 5)):
        with qwen3tts.load(folder, backend="cpu", profile=few, runtime=runtime) as tts:
            assert tts.engine.runtime.frames.free_slots() == expected
    with qwen3tts.load(folder, backend="cpu", profile="reference") as tts:
        assert tts.engine.runtime.frames.free_slots() == 16


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda s: s.variable)
def test_switch_changes_its_option_on_its_backend_alone(switch) -> None:
    for backend in BACKENDS:
        before = find_profile("default", backend)
        after = apply_switches(before, {switch.variable: "1"})
        if backend != switch.backend:
            assert after == before
            continue
        options = {p.name: p.options for p in after.passes}[switch.pass_name]
        assert options[switch.option] == switch.value
        assert after.switches == (switch.variable,)
        assert after.hash != before.hash
        default_registry.create(switch.pass_name, **options)
    for off in ("", "0", "false", "No", "OFF"):
        assert apply_switches(find_profile("default", switch.backend), {switch.variable: off}).switches == ()


def test_parsing_damaged_text_never_fails_otherwise() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    refused = 0
    for _ in range(500):
        text = list(TEXT)
        for _ in range(draw.randrange(1, 6)):
            at = draw.randrange(len(text))
            text[at : at + draw.randrange(4)] = draw.choice(["", "[", '"', "=", "\n", "x", "{", "\0", "1e999"])
        try:
            assert len(parse_profile("".join(text), "damaged").hash) == 16
        except OptionError:
            refused += 1
    assert refused > 100
