"""What exists of a stack and its jobs, what it has cost so far, and what happened to it."""
