"""The stack file: its text, keys, rules, and what follows from them."""
