"""`python -m qwen3tts` is the program `qwen3tts`."""

from qwen3tts.cli.main import main

if __name__ == "__main__":
    main()
