"""Measures this machine: kernels, whole steps, power. Needs torch; nothing else in knee imports it."""
