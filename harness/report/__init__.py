"""What a run found, for people: one HTML file, and a table for the terminal."""
