"""Text files -> token shards -> the batches of a training step."""
