"""What tuning returns: on published sweeps, and on a real cluster."""
