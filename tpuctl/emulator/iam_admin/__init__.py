"""IAM Admin v1: service accounts and roles."""

__all__: list[str] = []
