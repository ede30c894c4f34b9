"""The command line: parse, call one flow, hand the result to a view."""
