"""A software profile fitted on own runs."""
