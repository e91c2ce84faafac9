"""Records -> Vega-Lite specs. Draws, never computes: every value comes from a record."""
