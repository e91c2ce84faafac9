"""A step drawn coarsely: every kind of action once, and where each of them runs."""
