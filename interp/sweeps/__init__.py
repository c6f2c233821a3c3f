"""Many models and checkpoints: units, workers, trajectories."""
