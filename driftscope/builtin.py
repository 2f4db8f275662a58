"""What comes with driftscope: sample prompts and the demo drafters, wherever they are installed."""

from __future__ import annotations

from pathlib import Path

from probes.errors import InputError

DEMO = "demo"
"""As a target: the built-in one. As a drafter path, `demo:eagle3` and `demo:eagle3.1` are the built-in drafters."""

DEMO_DRAFTERS = ("eagle3", "eagle3.1")


def sample_prompts() -> Path:
    """The folder of sample prompts: packaged in a wheel, at the top of a checkout."""
    package = Path(__file__).parent
    for folder in (package / "_sample_prompts", package.parent / "sample_prompts"):
        if folder.is_dir():
            return folder
    raise InputError(
        "the sample prompts are missing from this installation",
        code="no_sample_prompts",
        where=str(package),
        remedy="Reinstall driftscope, or give --prompts.",
    )


def resolve_target(name: str) -> str:
    """`demo` -> the built-in target's folder (made on the first call); anything else stays."""
    if name != DEMO:
        return name
    from probes.target.demo import demo_target_path

    return str(demo_target_path())


def is_demo_drafter(name: str) -> bool:
    """True if it is `demo:NAME` of a built-in drafter; `demo:../elsewhere` is not."""
    prefix, _, drafter = name.partition(":")
    return prefix == DEMO and drafter in DEMO_DRAFTERS


def resolve_drafter(name: str) -> str:
    """`demo:NAME` -> a built-in drafter's folder; anything else stays."""
    prefix, colon, drafter = name.partition(":")
    if prefix != DEMO or not colon:
        return name
    if not is_demo_drafter(name):
        raise InputError(
            f"there is no built-in drafter {drafter!r}",
            code="no_such_demo_drafter",
            where=name,
            remedy=f"Use one of {', '.join(f'demo:{d}' for d in DEMO_DRAFTERS)}.",
        )
    return str(Path(__file__).parent / "_demo_drafters" / drafter)
