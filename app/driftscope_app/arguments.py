"""The app's own command line: `streamlit run app -- --runs DIR`. Knows no Streamlit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DEFAULT_RUNS = Path("runs")


def runs_folder(argv: Sequence[str] | None = None) -> Path:
    """The folder of runs, absolute; `runs` in the working directory when it is not given."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--runs", type=Path, default=DEFAULT_RUNS)
    known, _ = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    return Path(known.runs).expanduser().resolve()
