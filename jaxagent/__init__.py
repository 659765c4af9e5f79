"""Vision-language search agents on TPU: rollouts with host-side retrieval and sharded policy
updates."""
