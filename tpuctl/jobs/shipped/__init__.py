"""Programs that are sent to machines as they are: standard library only, Python 3.8 and later.

They run there as `python3 -S -I FILE ...`, all in one folder, whatever
their room is here: no two have the same name.
"""
