"""A grid of training runs: checked, estimated, scheduled on this machine, on hosts or through Slurm."""
