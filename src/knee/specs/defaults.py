"""What is taken where nothing was said, by every command and function."""

from __future__ import annotations

DEFAULT_PROFILE = "eager"
DEFAULT_SEQ_LEN = 4096
"""Or the model's longest, where that is less."""
