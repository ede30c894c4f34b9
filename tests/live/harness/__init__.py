"""What `make live` is made of: settings, cost, a recorder, a comparison, the way back to zero."""

__all__: list[str] = []
