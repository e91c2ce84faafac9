"""Measures this machine: kernels, collectives, power, whole steps. Needs torch; ``inventory``, which only looks, does not."""
