"""The watchdog of a stack's machines, and what ensures that it runs."""
