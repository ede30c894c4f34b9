"""Who calls and what they may do: tokens, roles, policies, conditions, held against each call."""

__all__: list[str] = []
