"""One training step of a model, cluster and plan."""
