"""The command of the explorer."""
