"""Objects and their versions: written, listed, copied, retained, deleted."""
