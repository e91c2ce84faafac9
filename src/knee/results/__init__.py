"""What the functions of `import knee` return."""
