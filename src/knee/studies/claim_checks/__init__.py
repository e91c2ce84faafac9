"""How much a claim that holds says: random profiles, and assumptions tried otherwise."""
