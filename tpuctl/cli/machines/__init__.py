"""Commands that reach a stack's machines."""
