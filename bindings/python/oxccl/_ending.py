"""The communicators that nobody has ended when the process ends."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys

from ._gen import ncclResult_t
from ._library import _c, _last_error

# The handles of those that are open, in the order of their making.
_open: dict[int, ctypes.c_void_p] = {}

# Nanoseconds that the end of the process waits for a rank that does not come.
_PATIENCE = 5_000_000_000

# A child has no part in its parent's.
os.register_at_fork(after_in_child=_open.clear)


def opened(place):
    """Notes a communicator that was made."""
    _open[place.value] = place


def ended(place):
    """Forgets a communicator that is about to end."""
    _open.pop(place.value, None)


def _works(place):
    failure = _last_error(lambda info: _c.oxcclCommLastError(place, info))
    return failure.code == ncclResult_t.ncclSuccess


@atexit.register
def _close_all():
    """Closes what is open, so that this rank is not lost to the others, which may still be at work.

    After an exception that nobody caught nothing is closed: the others are to hear of it, and this process shall
    wait for none of them."""
    if getattr(sys, "last_value", None) is not None:
        return
    places = [place for place in _open.values() if _works(place)]
    _open.clear()
    for place in places:
        _c.oxcclCommSetTimeout(place, _PATIENCE)
    for place in places:
        # Nobody is left to be told of an error; the library has logged it.
        _c.ncclCommDestroy(place)
