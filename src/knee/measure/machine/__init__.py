"""Measures this machine: kernels, collectives, power, whole steps. Needs torch; ``inventory`` only looks."""
