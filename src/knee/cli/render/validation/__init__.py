"""Tables of `knee validate`, one file for each kind of measurement."""
