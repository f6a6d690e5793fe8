"""Which backends there are, loaded only when asked for."""

from qwen3tts.backends.registry import BackendStatus, Runtime, choose, probe

__all__ = ["BackendStatus", "Runtime", "choose", "probe"]
