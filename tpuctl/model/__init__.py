"""The data model: values shared by the whole program."""

__all__: list[str] = []
