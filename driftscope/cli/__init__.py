"""The command line: one module per command.

To add a command: write its module with one function of the command's name, add it to `COMMANDS`, and the model of its
`--json` to `schema.OUTPUTS`. Modules import what is heavy inside the function, so that `--help` stays quick.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from driftscope import __version__
from driftscope.cli.advise import advise
from driftscope.cli.app import app as app_command
from driftscope.cli.bench import bench
from driftscope.cli.check import check
from driftscope.cli.compare import compare
from driftscope.cli.console import BROKEN_PIPE, INTERRUPTED, print_error
from driftscope.cli.demo import demo
from driftscope.cli.diagnose import diagnose
from driftscope.cli.export import export
from driftscope.cli.import_ import import_
from driftscope.cli.probe import probe
from driftscope.cli.report import report
from driftscope.cli.runs import runs
from driftscope.cli.schema import schema
from driftscope.cli.show import show
from probes.errors import DriftscopeError, InputError, file_error

COMMANDS = (demo, check, probe, show, compare, app_command, diagnose, advise, bench, report, export, schema)
GROUPS = {"runs": runs}

# typer brings its own copy of click or imports the real one, depending on its version: take the class from its own tree
_ClickException: type[Exception] = next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")

app = typer.Typer(
    name="driftscope",
    help="Finds out why an EAGLE-3 / EAGLE-3.1 drafter's tokens are, or are no longer, accepted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"driftscope {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


for _command in COMMANDS:
    app.command()(_command)
app.command("import")(import_)  # a keyword cannot be a function's name
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 for a user's mistake, 130 when interrupted.

    Neither a DriftscopeError nor what the operating system refuses (a full disk, a folder that may not be written)
    shows a traceback; any other exception is a bug and does.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    is_json = "--json" in options
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files need not be UTF-8, and not every terminal is
            stream.reconfigure(errors="backslashreplace")
    try:
        result = app(args=arguments, prog_name="driftscope", standalone_mode=False)
        sys.stdout.flush()
        code = result if isinstance(result, int) else 0
    except DriftscopeError as error:
        print_error(error, is_json=is_json)
        code = error.exit_code
    except _ClickException as error:
        code = _report_usage(error, is_json=is_json)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except (BrokenPipeError, SystemExit):  # the reader has had enough, e.g. `| head`; rich and typer make it SystemExit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor may the flush at exit complain
        code = BROKEN_PIPE
    except OSError as error:
        refused = file_error(error)
        print_error(refused, is_json=is_json)
        code = refused.exit_code
    if code == INTERRUPTED:
        print_error(DriftscopeError("interrupted", code="interrupted"), is_json=is_json)
    return code


def _report_usage(error: Exception, *, is_json: bool) -> int:
    """A command line that cannot be understood: wrong option, missing argument."""
    code: int = getattr(error, "exit_code", InputError.exit_code)
    if is_json:
        message = error.format_message()  # type: ignore[attr-defined]
        remedy = "See `driftscope COMMAND --help`."
        print_error(InputError(message, code="usage", where="command line", remedy=remedy), is_json=True)
    else:
        error.show()  # type: ignore[attr-defined]  # usage, then the message, on stderr
    return code
