"""How long a training step takes, and why: workload -> cost -> timeline -> simulator. It prints nothing."""
