"""The weights of a run as a Hugging Face folder."""
