"""One real training run."""
