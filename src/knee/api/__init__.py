"""What ``import knee`` gives: a file for each question: a function of plain names, and its result."""
