"""``knee tune``, and what it prints."""
