"""Errors, units, columns, files, processes and signals: what every other package uses. It knows nothing of training."""
