"""Voices: presets, x-vectors, voice files, and what a model accepts."""
