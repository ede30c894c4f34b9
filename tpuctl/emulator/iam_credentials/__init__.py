"""IAM Service Account Credentials v1: tokens and signatures of accounts, for others."""
