"""This machine, measured and written as a cluster file."""
