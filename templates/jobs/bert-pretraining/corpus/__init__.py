"""Data preparation: every stage from text to records, independent of the model."""
