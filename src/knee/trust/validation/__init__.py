"""Published and user runs and bandwidths -> the errors of the simulator on them."""
