"""Measurements of Headrace: ``python -m bench NAME``, one file a name. Figures, not tests: the exit code stays 0."""
