"""What a job needs installed: its Python, its tools, and whether machines can have them."""
