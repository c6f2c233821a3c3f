"""Many models, checkpoints and prompts: `sweep`, its units and workers, and trajectories."""
