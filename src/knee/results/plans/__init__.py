"""One plan of a search."""
