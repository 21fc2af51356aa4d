"""The HTTP API: steps and feedback in, states out. Starts without torch."""
