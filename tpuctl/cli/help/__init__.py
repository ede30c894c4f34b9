"""The table of commands, their help pages, and suggestions for misspelled words."""
