"""Views of a command's events while it runs: a live tree, plain lines, or JSON lines."""
