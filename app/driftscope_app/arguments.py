"""The app's own command line: `streamlit run app -- --runs DIR --allow-host NAME`. Knows no Streamlit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DEFAULT_RUNS = Path("runs")


def runs_folder(argv: Sequence[str] | None = None) -> Path:
    """The folder of runs, absolute; `runs` in the working directory when it is not given."""
    return Path(_parsed(argv).runs).expanduser().resolve()


def allowed_hosts(argv: Sequence[str] | None = None) -> list[str]:
    """Names besides this machine's own that requests may be made for."""
    return list(_parsed(argv).allow_host)


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--runs", type=Path, default=DEFAULT_RUNS)
    parser.add_argument("--allow-host", action="append", default=[])
    known, _ = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    return known
