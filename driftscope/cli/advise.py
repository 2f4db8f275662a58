"""`driftscope advise RUN`: which depth K, and whether speculation pays at all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli.console import Json, console, print_json
from probes.errors import InputError


def advise(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A NAME.drift folder.")],
    draft_us: Annotated[
        str | None, typer.Option(metavar="US", help="Time of one draft step, or of steps 1, 2, ... with commas.")
    ] = None,
    verify_us: Annotated[
        str | None, typer.Option(metavar="US", help="Time of one verify, or for K = 1, 2, ... with commas.")
    ] = None,
    plain_us: Annotated[
        float | None, typer.Option(metavar="US", help="Time of a step without speculation. [time of a verify]")
    ] = None,
    json: Json = False,
) -> None:
    """Expected speed by depth K against plain decoding, from walk acceptance and the costs of a draft and a verify.

    Without costs, measured in the run or given, it says what a draft may cost at most. docs/advise.md has the formula.
    """
    from driftscope.advise import advise as judge
    from driftscope.advise import given_costs
    from driftscope.runs import read_run

    advice = judge(read_run(run), given_costs(draft_us, verify_us, plain_us))
    given = [
        flag
        for flag, value in (("--draft-us", draft_us), ("--verify-us", verify_us), ("--plain-us", plain_us))
        if value is not None
    ]
    if given and (draft_us is None or verify_us is None) and all(c.costs is None for c in advice.conditions):
        raise InputError(
            f"{' and '.join(given)} {'has' if len(given) == 1 else 'have'} no effect here: the run holds no times",
            code="option_without_effect",
            where=given[0],
            remedy="Give --draft-us and --verify-us.",
        )
    if json:
        print_json(advice)
    else:
        from driftscope.cli.advise_text import print_advice

        print_advice(console(), advice)
