"""What each command's `data` is in the envelope of `--json`.

A model is both what is printed and the source of the published schema. Keys keep their names and
meanings; new keys may be added, so programs must ignore unknown ones. Money is in US dollars,
timestamps are in ISO 8601, and null means unknown or not applicable.
"""
