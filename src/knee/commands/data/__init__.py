"""Token shards from text files."""
