"""What runs at the same time: seconds -> passes -> pipeline -> step."""
