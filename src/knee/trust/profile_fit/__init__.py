"""Training runs -> the values of a software profile that they determine."""
