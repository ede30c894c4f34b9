"""Runs an attempt on a worker, from the arrival of its files to its final record."""
