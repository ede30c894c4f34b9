"""Programs that are sent to machines as they are: standard library only, Python 3.8 and later.

They run there as `python3 -S -I FILE ...`, each next to the others that it needs.
"""

__all__: list[str] = []
