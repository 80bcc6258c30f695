"""What the battery expects of every agent it is given."""

CACHE_BYTES = 4_000_000
"""Cache limit of the agent's board: small, so that files are evicted."""
