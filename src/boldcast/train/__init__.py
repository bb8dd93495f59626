"""Training: the loop, and what it needs at each step."""
