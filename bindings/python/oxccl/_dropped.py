"""Streams that were dropped while they had work."""

from __future__ import annotations

from ._gen import ncclResult_t
from ._library import _c

# The ends of their work, and its arrays.
busy: list[tuple] = []


def drop(handle, end, kept):
    """Ends a stream whose work may go on; `end` is an event. A query of the stream would take the error of that
    work, which the end of the communicator is to tell."""
    if kept:
        _c.oxcclEventRecord(end._handle, handle)
        busy.append((end, kept))
    _c.oxcclStreamDestroy(handle)


def forget_done():
    """Forgets the arrays of work that is done."""
    for _ in range(len(busy)):
        try:
            dropped = busy.pop(0)
        except IndexError:
            # Other threads take from it, too.
            break
        if _c.oxcclEventQuery(dropped[0]._handle) == ncclResult_t.ncclInProgress:
            busy.append(dropped)
