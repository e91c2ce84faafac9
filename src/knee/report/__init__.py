"""Records and figures -> one HTML file that needs no network. Writes, never computes."""
