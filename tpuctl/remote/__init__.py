"""Commands and files on machines, over SSH."""
