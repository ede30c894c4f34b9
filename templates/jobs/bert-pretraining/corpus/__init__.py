"""Text becomes records: every stage of the data, without a model."""
