"""Findings of a rehearsal by what they are about, from what was observed."""
