"""Predictions against what was measured: fits, and what is held back from them."""
