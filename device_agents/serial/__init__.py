"""Boards over a serial line that run boardtune's firmware: the wire protocol's host side and the agent over it."""
