"""The decoder and the trainer under a parallel plan: one file per technique. Needs torch."""
