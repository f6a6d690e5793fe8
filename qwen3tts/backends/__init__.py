"""Which backends there are, loaded only when asked for."""

from qwen3tts.backends.registry import BackendStatus, choose, probe

__all__ = ["BackendStatus", "choose", "probe"]
