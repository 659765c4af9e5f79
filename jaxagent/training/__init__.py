"""Updates: packed batches, the jitted step, the loops of SFT and RL, checkpoints and metrics."""
