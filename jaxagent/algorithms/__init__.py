"""Policy-gradient algorithms as values: pure functions of log-probabilities, rewards and counts."""
