"""What more GPUs bring, and where adding GPUs stops paying off."""
