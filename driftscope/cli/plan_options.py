"""The options of a plan as a command's parameters, made from the fields of `Plan`: a new option is a field there."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from driftscope.plan import COMMAS, Plan

R = TypeVar("R")

PLAN_FILE_ONLY = {"vllm": "a table of engine arguments does not fit on a command line"}
ON_COMMAND_LINE = tuple(name for name in Plan.model_fields if name not in PLAN_FILE_ONLY)


def plan_options(notes: Iterable[str] | Mapping[str, str]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a command these options of a plan in place of its parameter `given`: name -> value of those that were written.

    A mapping adds a sentence to an option's help: what it is to this command. `make_plan` reads the values.
    """
    added = notes if isinstance(notes, Mapping) else dict.fromkeys(notes, "")

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name == "given":
                parameters += [_parameter(name, note) for name, note in added.items()]
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(command)
        def run(**values: Any) -> R:
            given = {name: value for name in added if (value := values.pop(name)) not in (None, [])}
            return command(given=given, **values)

        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # what typer reads
        return run

    return decorate


def _parameter(name: str, note: str) -> inspect.Parameter:
    field = Plan.model_fields[name]
    kind, metavar = written(field)
    value = field.get_default(call_default_factory=True)
    is_shown = not field.is_required() and not isinstance(value, bool) and value not in (None, [], {})
    shown = ",".join(map(str, value)) if isinstance(value, list) else f"{value:g}" if kind is float else str(value)
    parts = (field.description, note, "Repeatable." if kind == list[str] else "", f"[{shown}]" if is_shown else "")
    option = typer.Option(metavar=metavar, help=" ".join(part for part in parts if part))
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def written(field: FieldInfo) -> tuple[Any, str | None]:
    """How an option is written: its type on the command line, and a metavar where that says more."""
    kind = field.annotation
    if get_origin(kind) in (Union, UnionType):
        [kind] = [part for part in get_args(kind) if part is not NoneType]
    if get_origin(kind) is Literal:
        return str, "|".join(get_args(kind))
    if get_origin(kind) is dict:
        return list[str], "NAME=PATH"
    if get_origin(kind) is list:
        return (str, "A,B,...") if COMMAS in field.metadata else (list[str], "PATH")
    return kind, None
