"""How long each part takes alone: operation -> seconds; message, group and placement -> seconds."""
