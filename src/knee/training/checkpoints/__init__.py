"""The state of a run on disk: checkpoints of torch.distributed.checkpoint, and weights as Hugging Face safetensors."""
