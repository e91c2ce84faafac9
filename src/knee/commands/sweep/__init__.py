"""A grid of real runs."""
