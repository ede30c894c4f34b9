"""Rehearsals: run a script for a few steps on this machine, observe it, and assess the result."""
