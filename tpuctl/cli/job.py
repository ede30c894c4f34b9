__all__ = ["register"]


def register(app):
    pass
