"""Where a trial's accuracy and time went, and which recipe would get them back."""
