"""The order in which the stages of a pipeline work."""
