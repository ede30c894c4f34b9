"""Cloud Storage: the JSON and the XML API."""
