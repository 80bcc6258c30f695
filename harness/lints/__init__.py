"""Findings about an artifact before it is sent to a board: what will not run there, or not as it was simulated.
Pure."""
