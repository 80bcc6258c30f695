"""The firmware of microcontroller boards: C sources, and what builds them for this computer."""
