"""What has to be done: model and plan -> operations, messages, bytes of memory."""
