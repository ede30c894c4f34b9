"""Known errors, the findings of `doctor`, and records of commands for bug reports."""
