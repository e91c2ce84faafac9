"""What real hardware did: probes of this machine and traces of PyTorch jobs. It predicts nothing."""
