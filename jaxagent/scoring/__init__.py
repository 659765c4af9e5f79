"""Scores of finished dialogues: answers by the data set's metric, rewards, reported metrics."""
