"""Cloud Storage: the JSON and the XML API."""

__all__: list[str] = []
