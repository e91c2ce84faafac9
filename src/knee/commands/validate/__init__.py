"""Published and own runs against predictions."""
