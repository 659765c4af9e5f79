"""A folder in PyTorch and in JAX on the same inputs, compared stage by stage."""
