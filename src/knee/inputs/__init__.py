"""Names, keyword arguments and job files -> specs and jobs: the same for every function and command."""
