"""The official package's classes on this runtime, so that existing code runs by changing its import.

They do what the official ones do (checked output by output, see docs/parity.md) and warn where that is a trap.
Differences, each on purpose: special tokens inside a text are spoken as text; blank texts are refused; sampled batches
give each row its own random numbers; the codec computes in float32 whatever the dtype; recordings are encoded one by
one, so that a voice does not depend on its neighbours; stereo and integer arrays are read as what they are; exactly the
reference's samples are cut from the front of a clone. The native interface is TTS.
"""

from qwen3tts.official.clone import VoiceClonePromptItem
from qwen3tts.official.codec import Qwen3TTSTokenizer
from qwen3tts.official.model import Qwen3TTSModel

__all__ = ["Qwen3TTSModel", "Qwen3TTSTokenizer", "VoiceClonePromptItem"]
