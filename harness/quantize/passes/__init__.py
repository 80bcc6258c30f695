"""Rewrites of float graphs that keep their meaning and make them quantizable. Each module holds one kind."""
