"""When a process began: tells it from a later one of the same id."""

from __future__ import annotations

from pathlib import Path


def process_start(pid: int) -> int | None:
    """Start time in clock ticks since boot, from Linux's /proc; None for no such process, a dead one, one of another
    user that is hidden, or no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:  # no such process, or one that may not be looked at (/proc mounted with hidepid)
        return None
    fields = stat.rpartition(")")[2].split()  # after the command name, which may hold spaces
    return None if fields[0] in "ZX" else int(fields[19])
