"""The stack file: its fields, its validation, and the stack that results."""
