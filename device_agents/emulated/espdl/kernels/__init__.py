"""Operators of the interpreter: one ``prepare`` for each, which turns a node into a function of arrays."""
