"""Workers: their numbers, ports, chips, and paths of files on them."""
