"""Sweeps of real runs on the engines clusters have: torchrun and Slurm. State is files, each written whole."""
