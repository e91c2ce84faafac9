"""The real trainer: the plan that the simulator takes, run by torch on one process or on thousands of GPUs."""
