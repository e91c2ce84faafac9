"""One page about own records."""
