"""The descriptions of the APIs that Google serves to anyone, with the methods offered here."""

__all__: list[str] = []
