"""How long a text may get when the caller sets no limit.

About 1 run in 200 of the released models never ends by itself and would babble on to the checkpoint's limit of
8191 frames, 11 minutes. The budget stops those without cutting speech: everyday speech takes 3 to 5 frames a token
(a token is a short word, a syllable or a Chinese word; digits are one token each), very slow reading perhaps 10.
25 frames a token are 2 seconds for each, and 75 more leave 6 seconds for pauses around very short texts.
"""

FRAMES_PER_TOKEN = 25
EXTRA_FRAMES = 75
OFFICIAL_MAX_NEW_TOKENS = 2048
"""the official package's fallback for a checkpoint without generation_config.json"""


def frame_budget(text_tokens: int) -> int:
    """The most frames that `text_tokens` tokens of text are given."""
    return EXTRA_FRAMES + FRAMES_PER_TOKEN * text_tokens


def default_max_frames(text_tokens: int | None, max_new_tokens: int | None) -> int:
    """min(checkpoint's max_new_tokens - 1, budget); N tokens give N - 1 frames. text_tokens None: not known yet."""
    limit = (max_new_tokens or OFFICIAL_MAX_NEW_TOKENS) - 1
    return max(1, limit if text_tokens is None else min(limit, frame_budget(text_tokens)))
