"""Suites of tests of other projects, unchanged, against the local cloud."""
