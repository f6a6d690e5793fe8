"""How fast a loaded model is, and where the time goes: `qwen3tts bench`."""
