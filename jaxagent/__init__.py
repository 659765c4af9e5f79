"""Vision-language search agents in JAX: rollouts with host-side retrieval, sharded updates."""
