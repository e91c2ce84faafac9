"""A probe's readings -> the constants of a cluster file, with the errors of the fit."""
