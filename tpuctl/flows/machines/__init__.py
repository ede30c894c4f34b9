"""The stack's machines: its workers and controller, and what connects to them."""
