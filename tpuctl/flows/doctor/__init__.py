"""Read-only checks of everything that a stack needs, and what a bug report needs of them."""
