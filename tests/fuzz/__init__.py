"""``make fuzz``: everything that comes from outside, changed at random, and held to what every answer must be."""
