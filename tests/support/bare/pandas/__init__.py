"""Stands before pandas where a test asks what runs without it: `headrace[spark]` does not install it."""

raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
