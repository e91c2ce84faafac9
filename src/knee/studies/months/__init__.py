"""Months of training in studies: what their tables say, and the rows that follow."""
