"""The values of a script's expressions, as far as they are known without running it."""
