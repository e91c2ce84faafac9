"""Training for real: the trainer, its data and checkpoints, launching and sweeps, and exports to other trainers."""
