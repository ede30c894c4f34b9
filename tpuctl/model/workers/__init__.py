"""The workers of a stack: their numbers, ports, chips, and the paths of files on them."""
