"""Several processes as one: who this process is, and sums whose bits do not depend on it."""
