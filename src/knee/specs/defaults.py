"""What is taken where nothing was said, by every command and function. It imports nothing, so that help is quick."""

from __future__ import annotations

DEFAULT_PROFILE = "eager"
DEFAULT_SEQ_LEN = 4096
"""Or the model's longest, where that is less."""
DEFAULT_CONVENTION = "palm"
"""How the model's FLOP are counted."""
DEFAULT_LAW = "besiroglu-2024"
DEFAULT_BATCH_LAW = "kaplan-2020"
DEFAULT_FAMILY = "llama"
DEFAULT_GRID = "world"
"""Where the electricity comes from."""
THRESHOLD = 1.5
"""Speed-up from which a doubling pays: three quarters of the ideal 2, so that an added GPU does half of a first one's
work."""
KEEP_FRAC = 0.9
"""Share of the best tokens per joule, and per dollar, that is kept up to the knee."""
HOLD_OUT_FRAC = 0.25
"""Share of the runs that a first fit of a profile does not see and is tried on."""
CLUSTER_FILE = "mine.toml"
"""What a probe writes."""
FP8_SMALLEST = 1024
"""Weights that are narrower in either direction keep 16-bit products in the trainer."""
LEARNING_RATE = 3e-4
TRACE_STEPS = 3
"""Steps under the profiler after the measured ones."""
TIMEOUT_S = 600.0
"""A run that does not move for so long is ended."""
SHARD_TOKENS = 1 << 26
"""Tokens after which a shard ends with the block it is at: 128 MiB of uint16, a minute or so of one process."""
MAX_BAD_FRAC = 0.01
"""Share of a text file's lines that may be left out because they cannot be used."""
WITHIN_FRAC = 0.02
"""Tuning stops when no untried plan is expected to win more than this."""
