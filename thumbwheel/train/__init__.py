"""One update each, readable top to bottom, and the one loop that runs them all."""
