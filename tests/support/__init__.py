"""What the tests stand on: real servers as child processes, waiting without sleeping, certificates."""
