"""Drives a `Qwen3TTSModel` through its public methods. The official class and this project's drop-in class are called
by the same code here, so a difference between them cannot come from the caller.
"""

import warnings

import torch
from signals import SAMPLE_RATE, signal

GREEDY = {"do_sample": False, "subtalker_dosample": False}


def sampling_of(case):
    """The sampling arguments of a case: greedy unless it says otherwise."""
    return GREEDY | case.get("sampling", {})


def speak(tts, case, prompt_items=None):
    """One generation case -> (list of float32 waveforms, sample rate). Seeds the global torch generator just before
    the call; `prompt_items` are the voice prompts of a voice_clone case, one per row."""
    rows, kind = case["rows"], case["kind"]
    texts = [row["text"] for row in rows]
    common = dict(language=[row.get("language", "Auto") for row in rows],
                  non_streaming_mode=case["non_streaming_mode"], max_new_tokens=case["max_new_tokens"],
                  **sampling_of(case))
    instruct = [row.get("instruct", "") for row in rows]
    torch.manual_seed(case.get("seed", 0))
    if kind == "custom_voice":
        speakers = [row["speaker"] for row in rows]
        return tts.generate_custom_voice(texts, speaker=speakers, instruct=instruct, **common)
    if kind == "voice_design":
        return tts.generate_voice_design(texts, instruct=instruct, **common)
    if kind == "voice_clone":
        return tts.generate_voice_clone(texts, voice_clone_prompt=prompt_items, **common)
    raise ValueError(f"{kind!r} is not a generation case")


# ---------------------------------------------------------------- other public behaviour

SHORT = {"max_new_tokens": 3, **GREEDY}
VOICE = signal("voice", 24000, 1)
RECORDING, OTHER = (VOICE, SAMPLE_RATE), (signal("chirp", 19200, 2), SAMPLE_RATE)
SAID = {"ref_audio": RECORDING, "ref_text": "The user."}

PROBES = {
    "custom_voice": {
        "unknown speaker": ("generate_custom_voice", {"text": "Hi", "speaker": "nobody"}),
        "unknown language": ("generate_custom_voice", {"text": "Hi", "speaker": "ryan", "language": "Klingon"}),
        "dialect as language": ("generate_custom_voice",
                                {"text": "Hi", "speaker": "ryan", "language": "beijing_dialect"}),
        "language None in a list": ("generate_custom_voice", {"text": "Hi", "speaker": "ryan", "language": [None]}),
        "two texts, three speakers": ("generate_custom_voice",
                                      {"text": ["Hi", "Ho"], "speaker": ["ryan", "eric", "dylan"]}),
        "two texts, three languages": ("generate_custom_voice", {"text": ["Hi", "Ho"], "speaker": "ryan",
                                                                "language": ["English", "French", "German"]}),
        "one text, two speakers": ("generate_custom_voice", {"text": "Hi", "speaker": ["ryan", "eric"]}),
        "clone on custom voice": ("generate_voice_clone", {"text": "Hi", **SAID}),
        "design on custom voice": ("generate_voice_design", {"text": "Hi", "instruct": "low"}),
        "unknown argument": ("generate_custom_voice", {"text": "Hi", "speaker": "ryan", "no_such_option": 3}),
        "one speaker for two texts": ("generate_custom_voice", {"text": ["Hi", "Ho"], "speaker": "ryan"}),
        "upper case": ("generate_custom_voice", {"text": "Hi", "speaker": "RYAN", "language": "ENGLISH"}),
        "no language": ("generate_custom_voice", {"text": "Hi", "speaker": "ryan"}),
        "empty speaker": ("generate_custom_voice", {"text": "Hi", "speaker": ""}),
        "speaker None": ("generate_custom_voice", {"text": "Hi", "speaker": [None]}),
        "instruct None": ("generate_custom_voice", {"text": "Hi", "speaker": "ryan", "instruct": None}),
        "one instruct for two texts": ("generate_custom_voice",
                                       {"text": ["Hi", "Ho"], "speaker": "ryan", "instruct": "Loud."}),
    },
    "voice_design": {
        "clone on design": ("generate_voice_clone", {"text": "Hi", **SAID}),
        "custom voice on design": ("generate_custom_voice", {"text": "Hi", "speaker": "ryan"}),
        "unknown language": ("generate_voice_design", {"text": "Hi", "instruct": "low", "language": "Klingon"}),
        "two texts, three instructs": ("generate_voice_design",
                                       {"text": ["Hi", "Ho"], "instruct": ["a", "b", "c"]}),
        "one instruct for two texts": ("generate_voice_design", {"text": ["Hi", "Ho"], "instruct": "low"}),
        "empty instruct": ("generate_voice_design", {"text": "Hi", "instruct": ""}),
        "instruct None": ("generate_voice_design", {"text": "Hi", "instruct": None}),
    },
    "base": {
        "clone": ("generate_voice_clone", {"text": "Hi", **SAID}),
        "clone by the x-vector": ("generate_voice_clone",
                                  {"text": "Hi", "ref_audio": RECORDING, "x_vector_only_mode": True}),
        "transcript beside the x-vector": ("generate_voice_clone", {"text": "Hi", **SAID, "x_vector_only_mode": True}),
        "whole text": ("generate_voice_clone", {"text": "Hi", **SAID, "non_streaming_mode": True}),
        "another rate": ("generate_voice_clone", {"text": "Hi", **SAID, "ref_audio": (VOICE, 16000)}),
        "64-bit floats": ("generate_voice_clone",
                          {"text": "Hi", **SAID, "ref_audio": (VOICE.astype("float64"), SAMPLE_RATE)}),
        "one recording for two texts": ("generate_voice_clone", {"text": ["Hi", "Ho"], **SAID}),
        "a recording for each text": ("generate_voice_clone", {
            "text": ["Hi", "Ho"], "ref_audio": [RECORDING, OTHER], "ref_text": ["The user.", None],
            "x_vector_only_mode": [False, True]}),
        "two recordings for one text": ("generate_voice_clone", {
            "text": "Hi", "ref_audio": [RECORDING, OTHER], "ref_text": "The user."}),
        "one transcript for two recordings": ("generate_voice_clone", {
            "text": ["Hi", "Ho"], "ref_audio": [RECORDING, OTHER], "ref_text": "The user."}),
        "two transcripts for one recording": ("generate_voice_clone",
                                              {"text": "Hi", "ref_audio": RECORDING, "ref_text": ["a", "b"]}),
        "no recording": ("generate_voice_clone", {"text": "Hi"}),
        "no transcript": ("generate_voice_clone", {"text": "Hi", "ref_audio": RECORDING}),
        "empty transcript": ("generate_voice_clone", {"text": "Hi", "ref_audio": RECORDING, "ref_text": ""}),
        "array without a rate": ("generate_voice_clone", {"text": "Hi", **SAID, "ref_audio": VOICE}),
        "a number for a recording": ("generate_voice_clone", {"text": "Hi", **SAID, "ref_audio": 5}),
        "no prompts": ("generate_voice_clone", {"text": "Hi", "voice_clone_prompt": []}),
        "unknown language": ("generate_voice_clone", {"text": "Hi", **SAID, "language": "Klingon"}),
        "unknown argument": ("generate_voice_clone", {"text": "Hi", **SAID, "no_such_option": 3}),
        "custom voice on base": ("generate_custom_voice", {"text": "Hi", "speaker": "ryan"}),
        "design on base": ("generate_voice_design", {"text": "Hi", "instruct": "low"}),
    },
}


def probe(tts, model_type):
    """What the public methods do apart from speaking: name -> result. A call gives the lengths of its waveforms, or
    "ValueError" for any exception of that kind, otherwise the exception's own name."""
    found = {"get_supported_speakers": tts.get_supported_speakers(),
             "get_supported_languages": tts.get_supported_languages()}
    for name, (method, arguments) in PROBES[model_type].items():
        torch.manual_seed(0)
        try:
            with warnings.catch_warnings():  # the drop-in class warns where the official one is silent
                warnings.simplefilter("ignore", UserWarning)
                wavs, rate = getattr(tts, method)(**(SHORT | arguments))
        except ValueError:
            found[name] = "ValueError"
        except Exception as error:  # the kind of failure is the result
            found[name] = type(error).__name__
        else:
            found[name] = [rate, *(len(wav) for wav in wavs)]
    return found
