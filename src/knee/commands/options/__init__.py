"""Options that several commands share, by what they describe."""
