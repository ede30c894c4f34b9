"""Texts of fixed forms: names, durations, and what is masked or unsafe in a terminal."""
