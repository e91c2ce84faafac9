"""Why a number is what it is: chains of formulas, constants and sources."""
