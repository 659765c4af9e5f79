"""Dialogues from questions: sampling, the KV cache, and the one event loop that runs every method."""
