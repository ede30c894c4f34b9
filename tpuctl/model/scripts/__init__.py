"""The user's script: which one it is, what it requires, and the framework it uses."""
