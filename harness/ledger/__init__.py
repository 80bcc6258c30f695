"""The record of a run and everything kept beside it. Import from the modules."""
