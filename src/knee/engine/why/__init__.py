"""A number as a chain of formulas, constants and sources."""
