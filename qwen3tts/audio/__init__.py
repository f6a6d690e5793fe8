"""Audio files, the mel spectrogram and the picture of an utterance."""
