"""The best plan of a real cluster, found in a few short runs: which run is next, what it tells, and when to stop."""
