"""Packaged canary models; ``make_canaries.py`` beside them made them."""
