"""Start the processes of a run, and turn how they ended into one exit code."""
