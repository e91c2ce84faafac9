"""GPUs, days or dollars -> the model size and the tokens that reach the lowest loss."""
