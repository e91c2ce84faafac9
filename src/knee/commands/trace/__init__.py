"""Where the time of a PyTorch job went."""
