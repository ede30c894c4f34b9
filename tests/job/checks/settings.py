"""Options of `pretrain.py` for checks, without a command line."""

from argparse import Namespace

import pretrain


def options_of(**changes: object) -> Namespace:
    """Return the default options with some changed; sizes in `training` are for these."""
    options = pretrain.parse([])
    unknown = set(changes) - set(vars(options))
    assert not unknown, unknown
    return Namespace(**{**vars(options), "predictions": 5, **changes})
