"""Static analysis of a script: its names, values and functions, without running it."""
