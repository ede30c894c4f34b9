"""Authentication and authorization: tokens, roles, policies, conditions, and the guard."""
