"""The replay memory, and the sampling and normalisation of what updates learn from."""
