"""The table of formats in docs/prompt_files.md: `python -m driftscope.prompts.table` prints it, a test keeps it there."""

from __future__ import annotations

from driftscope.prompts.formats import FORMATS, TEXT, TEXT_SUFFIXES


def table() -> str:
    """A row for each format, in the order of detection."""
    rows = [(row.name, row.files, row.keys) for row in FORMATS.values()]
    rows.append((TEXT, ", ".join(f"`{suffix}`" for suffix in TEXT_SUFFIXES), "the whole file is one user turn"))
    lines = [f"| `{name}` | {files} | {keys} |" for name, files, keys in rows]
    return "\n".join(["| `--prompt-format` | files | keys |", "|---|---|---|", *lines, ""])


if __name__ == "__main__":
    print(table(), end="")
