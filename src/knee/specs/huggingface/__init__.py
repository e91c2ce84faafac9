"""Models from Hugging Face's ``config.json``: what each family's keys mean, and what is refused by name."""
