"""How a process that serves treats its memory: what lives as long as it does is not looked through again and again.

The collector of cycles stops everything while it looks; with the program itself in its way that takes tens of
milliseconds, which is an eternity for a stream.
"""

import gc

FRESH_MAX, YOUNG_MAX, OLD_MAX = 50_000, 20, 50
"""How many new objects there may be until the youngest are looked through, and how often that is until the older ones."""


def settle() -> None:
    """Leave what there is by now out of later collections, and collect the rest less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(FRESH_MAX, YOUNG_MAX, OLD_MAX)
