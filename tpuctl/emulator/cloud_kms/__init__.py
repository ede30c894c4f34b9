"""Cloud KMS v1."""
