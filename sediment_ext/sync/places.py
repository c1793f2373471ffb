"""What all places of sync have in common: how they fail, and whom they serve."""

from __future__ import annotations

import sediment as core

RECORD_VERSION = 1  # of what sync sends
CLOCK_OFF = 3_600  # s between two clocks that are worth a remark
RIVALS = 20  # later versions of one memory that are named to other machines, in assets/hub.sql, too
SYNC_POLL = 1.0  # s between looks at whether something has changed here
SYNC_FILE_MAX = 1 << 28  # bytes of a file of a machine, which has 1/256 of its memories
HUB_ANSWER = 600  # s that one answer of a hub may take; indexes take longer
HUB_SILENCE = 60  # s after which a connection is over on which nothing is delivered
HUB_PUSH = 1 << 25  # bytes that a hub is sent at once; of 256 MB PostgreSQL makes no array
GIT_TRIES = 8  # to fetch or push: git of two killed runs was still at work, here and at the place
MACHINE_NAME_MAX = 64  # letters, as POSIX has of a host and PostgreSQL of a role
MARKS_MAX = 1_000  # of one memory, with the tags that were taken away
COUNT_MAX = 1 << 31  # one machine's confirmations of a memory: nobody has more
SYNC_BATCH = 200  # states that are written in one transaction, 30 ms that a store may wait
SYNC_ROUND = 1_000  # that are taken at once, or every other batch would be a small one


# What is sent


class FutureRecord(core.SedimentError):
    """A record is of a later program, or of a clock far ahead: it is to be read another time."""


class Unreachable(core.SedimentError):
    """The place is not there now; what is to be sent waits."""


class Refused(Unreachable):
    """The place is there, but takes nothing or lets nobody in; that does not pass by itself."""


class PushConflict(Unreachable):
    """Another run has written to the place, in this machine's name, since this one looked."""


UNTRUSTED = core.LazyPattern("certificate (?:problem|verif)|root certificate")


def untrusted_reason(place: str, reason: str, remedy: str) -> str:
    """What to say where a place shows no certificate that this machine trusts."""
    return f"{place} shows no certificate that is trusted here ({reason}): {remedy} names its CA"


class Machine(core.NamedTuple):
    """This file among the machines."""

    name: str
    host: str
    person: str
