"""The data model: values shared by the whole program."""
