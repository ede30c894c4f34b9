"""Findings of the check, of rehearsals and of compilations, as text."""
