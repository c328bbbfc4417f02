"""Makes what is generated from the code. Nothing here is installed."""
