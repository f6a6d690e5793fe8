"""From text to the talker's prompt: vocabulary files, tokenizer, chat templates, prompt assembly."""
