"""What heads do to the output: ablation, paths, and whether labels are causal."""
