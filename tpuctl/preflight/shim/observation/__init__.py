"""What the hooks of every framework share: settings, steps, user lines, files, the exit."""
