"""Who may do what in the local cloud: roles, policies and conditions, held against each call."""

__all__: list[str] = []
