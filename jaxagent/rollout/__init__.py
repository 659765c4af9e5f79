"""Dialogues from questions: sampling, the KV cache, the one event loop that runs every method."""
