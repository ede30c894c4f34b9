"""IAM Admin v1: service accounts and roles."""
