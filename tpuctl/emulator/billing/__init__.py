"""Cloud Billing v1: accounts and the price list."""
