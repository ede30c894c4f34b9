"""The files of a script, parsed: their names, functions, calls, and options."""
