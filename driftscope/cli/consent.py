"""Shows what a run names, on stderr, and asks whether it may be loaded. Loads nothing."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from driftscope.diagnosis.named import Named
from probes.errors import printable


def show_named(named: Sequence[Named]) -> None:
    """Everything that is going to be loaded and read: the user has agreed to it."""
    sys.stderr.write("interventions load:\n" + _lines(named))


def show(run: Path, foreign: Sequence[Named]) -> None:
    """Show what would be loaded, and how to allow it."""
    command = shlex.join(["driftscope", "diagnose", str(run), "--interventions"])
    sys.stderr.write(f"  They would load:\n{_lines(foreign)}  If that is what you want: {printable(command)}\n")


def agreed(foreign: Sequence[Named]) -> bool:
    """True if the user says yes; False where nobody sits at a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(f"The run lacks interventions. They load what the run names:\n{_lines(foreign)}Load it? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _lines(named: Sequence[Named]) -> str:
    return "".join(f"    {printable(thing.what)}: {printable(thing.value)}{_kind(thing)}\n" for thing in named)


def _kind(thing: Named) -> str:
    if thing.is_builtin:
        return " (comes with driftscope)"
    return " (from the Hugging Face Hub)" if thing.is_hub_id else ""
