"""Kineto trace files: read into columns of whole nanoseconds, and written."""
