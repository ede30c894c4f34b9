"""Cloud Billing v1: accounts and the price list."""

__all__: list[str] = []
