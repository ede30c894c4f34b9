"""Authentication and authorization: tokens, roles, policies, conditions, and the guard."""

__all__: list[str] = []
