"""What becomes of a step in months of training: failures, restarts, checkpoints, and the time that is left."""
