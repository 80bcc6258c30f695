"""What a static recipe can do beyond ranges: one module per method, each on graphs and arrays only."""
