"""Agent methods as values: what a policy may do, and what the environment answers."""
