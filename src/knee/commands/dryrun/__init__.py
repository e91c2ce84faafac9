"""The trainer traced without GPUs."""
