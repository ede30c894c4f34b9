"""Checks of a script before it is submitted: static check, rehearsal and compilation."""
