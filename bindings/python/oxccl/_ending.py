"""The communicators that nobody has ended when the process ends."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import time

from ._gen import ncclResult_t
from ._library import _c, _last_error

# The handles of those that are open, in the order of their making.
_open: dict[int, ctypes.c_void_p] = {}

# Seconds that the end of the process waits for ranks that do not come.
_PATIENCE = 5

# A child has no part in its parent's.
os.register_at_fork(after_in_child=_open.clear)


# The process of multiprocessing whose end was arranged for, and the exception that was handled then: a process that
# forks while it handles one gives it to its child.
_arranged = _handled = None


def opened(place):
    """Notes a communicator that was made."""
    _arrange()
    _open[place.value] = place


def _arrange():
    """A process of multiprocessing may end without exit handlers, and catches what its function raises."""
    global _arranged, _handled
    process = sys.modules.get("multiprocessing.process")
    if process and process.parent_process() and _arranged != os.getpid():
        from multiprocessing import util

        _arranged, _handled = os.getpid(), sys.exc_info()[1]
        util.Finalize(None, _close_all, exitpriority=0)


def ended(place):
    """Forgets a communicator that is about to end."""
    _open.pop(place.value, None)


def _works(place):
    failure = _last_error(lambda info: _c.oxcclCommLastError(place, info))
    return failure.code == ncclResult_t.ncclSuccess


def _has_failed():
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    # What a process of multiprocessing ends with.
    ended_well = isinstance(error, SystemExit) and error.code in (None, 0)
    return error not in (None, _handled) and not ended_well


@atexit.register
def _close_all():
    """Closes what is open, so that this rank is not lost to the others, which may still be at work.

    After an exception that nobody caught nothing is closed: the others are to hear of it, and this process shall
    wait for none of them. A program that catches its exceptions and calls sys.exit() aborts its communicators itself;
    in a process of multiprocessing, sys.exit() with another status than 0 counts as such an exception."""
    if _has_failed():
        _open.clear()
        return
    end, places = time.monotonic() + _PATIENCE, []
    while _open:
        # Other threads may end some, too: each goes to one.
        try:
            places.append(_open.popitem()[1])
        except KeyError:
            break
    places = [place for place in reversed(places) if _works(place)]

    def bound(place):
        _c.oxcclCommSetTimeout(place, max(1, int((end - time.monotonic()) * 1e9)))

    for place in places:
        bound(place)
    for place in places:
        bound(place)
        code = _c.ncclCommDestroy(place)
        # Exit handlers that run later find it ended.
        place.value = None
        if code != ncclResult_t.ncclSuccess and sys.stderr:
            # No exception could be caught any more, nor one of what nobody reads.
            with contextlib.suppress(OSError, ValueError):
                print(f"oxccl: at the end of the process: {_last_error(_c.oxcclLastError)}", file=sys.stderr)
