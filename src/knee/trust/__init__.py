"""The errors on published runs -> a band and a label for an answer."""
