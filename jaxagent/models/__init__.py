"""Flax NNX models whose parameters are always an argument."""
