"""The log of an attempt, its index, and how it is streamed."""
