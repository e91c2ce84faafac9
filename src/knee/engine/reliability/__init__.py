"""What failures, restarts and checkpoints leave of a long run."""
