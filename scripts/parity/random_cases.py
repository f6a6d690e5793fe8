"""Random generation cases, for a live comparison beyond the listed ones. The same seed gives the same cases."""

import random

LANGUAGES = ("Auto", "Chinese", "English", "German", "Italian", "Portuguese", "Spanish", "Japanese", "Korean",
             "French", "Russian")
SPEAKERS = ("serena", "Vivian", "uncle_fu", "RYAN", "aiden", "ono_anna", "sohee", "eric", "dylan")
PIECES = ("Hello world,", "the voice", "is speaking", "don't", "you'll", "HTTPServer", "iPhone", "3.14", "1,234 €",
          "(x+1)²", "24/7", "e-mail", "naïve", "déjà vu", "¿Cuánto?", "Größe", "Привет, мир",
          "今天天气很好，", "我们走吧。",
          "こんにちは", "東京は晴れ", "안녕하세요", "여러분", "שלום", "नमस्ते", "สวัสดี",
          "e\u0301te\u0301", "🎉", "👩‍🚀", "—", "…",
          "\n", "\t", "  ", "and so on", "to the user", "!", "?", "ﬁ", "A" * 40)
INSTRUCTS = ("Speak in a warm voice.", "Whisper.", "温柔的女声", "明るい声で", "Very fast, then slow; angry!", "низко")
SIGNALS = ("voice", "chirp", "noise")


def random_cases(model_type, count, seed):
    """`count` cases for a checkpoint of `model_type`. Greedy cases have 1 to 4 rows, sampled ones a single row
    (official batches share their draws). `seed` may be any string."""
    rng = random.Random(f"{model_type} {seed}")
    cases = [_case(rng, model_type, i) for i in range(count)]
    # past 300 frames the official package decodes in chunks that see too little of what went before
    cases.append({"name": "random_codec_chunks", "kind": "codec_decode", "frames": rng.randint(301, 700),
                  "seed": rng.randrange(2**31)})
    return cases


def _case(rng, model_type, index):
    sampling = _sampling(rng) if rng.random() < 0.5 else {}
    rows = 1 if sampling else rng.choice((1, 1, 2, 3, 4))
    kind = "voice_clone" if model_type == "base" else model_type
    case = {"name": f"random_{index}", "kind": kind, "non_streaming_mode": rng.random() < 0.5,
            "max_new_tokens": rng.randint(2, 30), "seed": rng.randrange(2**31),
            "rows": [_row(rng, model_type) for _ in range(rows)]}
    if kind != "voice_clone" and rng.random() < 0.15:
        row = case["rows"][0]
        row["text"] = rng.choice(("\n", " ", "\n\n")) + row["text"] + rng.choice(("", " ", "\n"))
    return case | ({"sampling": sampling} if sampling else {})


def _row(rng, model_type):
    row = {"text": _text(rng), "language": rng.choice(LANGUAGES)}
    if model_type == "custom_voice":
        row["speaker"] = rng.choice(SPEAKERS)
        if rng.random() < 0.6:
            row["instruct"] = rng.choice(INSTRUCTS)
    elif model_type == "voice_design":
        row["instruct"] = rng.choice((*INSTRUCTS, ""))
    else:
        row["reference"] = {"mode": "x_vector", "signal": {"kind": rng.choice(SIGNALS), "seed": rng.randrange(1000),
                                                           "samples": rng.randint(4000, 60000)}}
        if rng.random() < 0.65:
            row["reference"] |= {"mode": "icl", "text": _text(rng)}
    return row


def _text(rng):
    """Without white space at the ends: the native interface strips it, the official package does not."""
    words = [rng.choice(PIECES) for _ in range(rng.randint(1, 14))]
    return rng.choice((" ", "", " ")).join(words).strip() or "Hi"


def _sampling(rng):
    """At least one of the two samplers draws. top_k 0 = off, 1 = greedy through the random path."""
    talker, subtalker = rng.choice(((True, True), (True, True), (True, False), (False, True)))
    return {"do_sample": talker, "temperature": round(rng.uniform(0.3, 1.6), 2),
            "top_k": rng.choice((0, 1, 5, 50, 5000)), "top_p": rng.choice((1.0, 0.95, 0.8, 0.3)),
            "repetition_penalty": rng.choice((1.0, 1.05, 1.3)),
            "subtalker_dosample": subtalker, "subtalker_temperature": round(rng.uniform(0.3, 1.6), 2),
            "subtalker_top_k": rng.choice((0, 1, 5, 50, 5000)), "subtalker_top_p": rng.choice((1.0, 0.95, 0.8, 0.3))}
