"""``knee.tune`` and ``knee.replay_tuning``."""
