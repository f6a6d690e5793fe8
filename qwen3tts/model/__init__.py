"""The specification: Qwen3-TTS in plain torch, equal to the official package. Knows nothing of kernels or files."""
