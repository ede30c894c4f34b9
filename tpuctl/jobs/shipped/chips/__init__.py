"""A worker's chips: freed before a script starts, and sampled while it runs."""
