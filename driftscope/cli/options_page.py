"""docs/options.md, made from the fields of `Plan`: `python -m driftscope.cli.options_page > docs/options.md`."""

from __future__ import annotations

import json

from pydantic.fields import FieldInfo

from driftscope.cli.plan_options import PLAN_FILE_ONLY, written
from driftscope.plan import Plan, flag


def documentation() -> str:
    """docs/options.md."""
    return "\n".join(
        [
            "# Options of a plan",
            "",
            "What `driftscope probe` can be asked for: on the command line, or under the key in a plan file",
            "(`driftscope probe plan.toml`); the command line wins. [measure.md](measure.md) has an example. In a",
            "plan file, `drafter`, `system_prompt`, `template` and `vllm` are tables, and paths are relative to it.",
            "`python -m driftscope.cli.options_page > docs/options.md` prints this page; a test keeps it current.",
            "",
            "| key | command line | default | what it does |",
            "|---|---|---|---|",
            *(_row(name, field) for name, field in Plan.model_fields.items()),
            "",
        ]
    )


def _row(name: str, field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    default = "required" if field.is_required() else "" if value in (None, [], {}) else f"`{json.dumps(value)}`"
    kind, metavar = written(field)
    option = f"{flag(name)} {metavar or ''}".strip() if kind is not bool else f"{flag(name)} / --no-{flag(name)[2:]}"
    option = "plan file only" if name in PLAN_FILE_ONLY else f"`{option}`".replace("|", "\\|")
    return f"| `{name}` | {option} | {default} | {field.description} |"


if __name__ == "__main__":
    print(documentation(), end="")
