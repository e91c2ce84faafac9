"""Text in a terminal: tables, progress, delivery of an answer."""
