"""The models, GPUs, clusters and profiles that knee knows."""
