"""Parts of pages about a whole run: its days, energy and dollars, and what failures make of them."""
