"""A process that reads what it is told to, under a limit on its memory, and says what came of it.

Run as `python -m tests.fuzz.reader`. One JSON object a line on stdin: {"kind", "path", ...}; one a line on stdout:
{"outcome": "read" | "refused" | "crashed", "text", "rss_mib"}. Knows nothing of how its input was made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import json
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from probes.errors import DriftscopeError, InputError, file_error

MARGIN_MIB = 512
"""Address space beyond what the process has after its imports; the inputs are a few kB to a few MB."""
MEASURING_MARGIN_MIB = 16 << 10
"""For one that measures: torch and duckdb reserve address space that they never touch."""
MEASURING = "--measuring"


MAX_MESSAGE_CHARACTERS = 20_000  # a message may quote a long name; it does not pour a file out


def read(kind: str, path: str, request: dict[str, Any]) -> str:
    """Reads `path` as a user's command would; returns something that shows that it did."""
    from driftscope.check import check_pair
    from driftscope.plan import make_plan
    from driftscope.plan_files import read_job, read_plan
    from driftscope.prompts import read_prompts
    from probes.checkpoint.read import read_spec

    if kind == "drafter":
        return json.dumps(dataclasses.asdict(read_spec(path, target_config=request["target_config"])))[:200]
    if kind == "check":
        return check_pair(request["target"], path).model_dump_json()[:200]
    if kind == "plan":
        plan = make_plan(read_plan(Path(path)), where=path)
        named = (plan.target, plan.reference_target, *plan.drafter.values())
        if not any(name is not None and name.startswith("demo") for name in named):  # a conversion of 270 MB
            read_job(plan)
        return plan.model_dump_json()[:200]
    if kind == "prompts":
        file = read_prompts(Path(path), format=request["format"])
        with contextlib.suppress(DriftscopeError):  # there may be no answer in it
            read_prompts(Path(path), format=request["format"], every_turn=True)
        return " ".join(file.report())[:200]
    if kind == "run":
        return read_as(request["command"], path)
    if kind == "measure":
        return measure(Path(path), is_read=request["is_read"])
    if kind == "read_run":
        return odd_run(Path(path), request["run"])

    if kind == "acceptance":
        return stored_acceptance(Path(path), request)
    if kind == "redact":
        return redacted(Path(path).read_text("utf-8", "surrogatepass"))
    if kind == "template":
        return rendered(Path(path).read_text("utf-8", "surrogatepass"), request)
    if kind == "misbehave":  # the tests of this harness
        return misbehave(path)
    raise ValueError(kind)


RUN_COMMANDS = ("show", "verify", "list", "advise", "compare", "diagnose", "report", "export", "profile")


def read_as(command: str, path: str) -> str:
    """What the command line's `command` computes and prints of a run."""
    from driftscope.cli import main

    with tempfile.TemporaryDirectory() as out:
        arguments = {
            "show": ["show", path],
            "verify": ["runs", "verify", path],
            "list": ["runs", "list", str(Path(path).parent)],
            "advise": ["advise", path],
            "compare": ["compare", path, "--by", "drafter"],
            "diagnose": ["diagnose", path, "--no-interventions"],
            "report": ["report", path, "-o", f"{out}/r.html"],
            "export": ["export", path, "--to", "csv", "-o", f"{out}/tables"],
            "profile": ["export", path, "--to", "speculation-profile", "-o", f"{out}/profile", "--drafter", "eagle3"],
        }[command]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(arguments)
    if code == DriftscopeError.exit_code:
        raise DriftscopeError(said.getvalue(), code="refused")
    return said.getvalue()[:200]


def measure(folder: Path, *, is_read: bool) -> str:
    """`probe` with the folder's plan.toml; with `is_read`, each reading command on the run that it makes."""
    with contextlib.chdir(folder):
        command(["probe", "plan.toml", "--out", "run.drift"])
        if is_read:
            read_run("run.drift")
    return "measured"


def read_run(run: str) -> str:
    """Every command that reads a run."""
    for words in (["show"], ["diagnose"], ["advise"], ["runs", "verify"], ["export", "--to", "csv", "--out", "tables"]):
        command([*words, "--", run])
    command(["report", "--out", "report.html", "--", run])
    command(["compare", "--", run, run])
    return "read"


def command(words: list[str]) -> None:
    """One command line. Raises InputError where it refuses (exit code 2), RuntimeError for any other failure."""
    from driftscope.cli import main

    end = words.index("--") if "--" in words else len(words)
    said, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(error):
        code = main([*words[:end], "--json", *words[end:]])
    if code == 2:
        detail = json.loads(said.getvalue())["error"]
        raise InputError(detail["message"], code=detail["code"])
    if code not in (0, 1):
        raise RuntimeError(f"{words} ended with {code}: {error.getvalue()[-500:]}")


def odd_run(folder: Path, name: str) -> str:
    """A small run under this name, read by every command."""
    from tests.synthetic_run import make_records, write_run

    with contextlib.chdir(folder):
        write_run(Path("plain.drift"), make_records(num_prompts=2, drafters=("d",)))
        try:
            Path("plain.drift").rename(name)
        except OSError as error:  # the system has no such name
            raise file_error(error) from error
        return read_run(name)


def stored_acceptance(path: Path, request: dict[str, Any]) -> str:
    """Metrics of an engine as a run, read again."""
    from driftscope.import_export import ImportOptions, read_acceptance, store, store_run
    from driftscope.runs import read_run

    store.summarise = store.write_summary = lambda *given: None  # duckdb wants more address space than there is
    file = read_acceptance(path, source=request["source"], depth=request["depth"])
    out = path.with_name("a.drift")
    store_run(file, out, ImportOptions(), overwrite=True)
    assert read_run(out).info.counts.num_rounds == sum(len(r.rounds.accepted_drafts) for r in file.requests)
    return " ".join(file.report())[:200]


def redacted(text: str) -> str:
    """A text redacted; what was found is found once, and no placeholder is taken for anything."""
    from driftscope.prompts import redact_text

    once, found = redact_text(text)
    assert once == text or found
    assert sum(once.count(f"[{kind}]") for kind in ("KEY", "EMAIL", "IP", "CARD", "PHONE")) >= sum(
        found.values()
    ) - sum(text.count(f"[{kind}]") for kind in ("KEY", "EMAIL", "IP", "CARD", "PHONE"))
    return once[:200]


@functools.cache
def byte_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: index for index, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def rendered(template: str, request: dict[str, Any]) -> str:
    """A conversation under a template, with regions for every token; templates have little time and text here."""
    from probes.prompt import template_process
    from probes.prompt.rendering import render

    template_process.MAX_CPU_SECONDS = 0.5
    template_process.MAX_TEXT_BYTES = 1 << 17
    found = render(byte_tokenizer(), request["messages"], template=template, chat_template_kwargs=request["kwargs"])
    assert len(found.region) == len(found.token_ids) > 0
    return found.text[:200]


def misbehave(how: str) -> str:
    if how == "crash":
        raise ZeroDivisionError("on purpose")
    if how == "hang":
        time.sleep(3600)
    held = []
    for _ in range(100):  # "hog"
        held.append(bytearray(64 << 20))
    return str(len(held))


IMPORTED = (
    *("duckdb", "pyarrow.parquet", "pyarrow.dataset", "scipy.stats", "plotly.graph_objects", "plotly.io", "jinja2"),
    *("driftscope.check", "driftscope.prompts", "driftscope.diagnosis.diagnose", "driftscope.report.page"),
)
"""What reading imports on the way is no memory of the input."""


def limit_memory(margin_mib: int) -> None:
    """No more address space than now and this: what exceeds it is a MemoryError here, not a dead machine."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (margin_mib << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    with contextlib.suppress(DriftscopeError):  # what this imports in turn
        read_as("list", "/nonexistent/a.drift")
    is_measuring = MEASURING in sys.argv
    if is_measuring:
        pass
    limit_memory(MEASURING_MARGIN_MIB if is_measuring else MARGIN_MIB)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            outcome, text = "read", read(request["kind"], request["path"], request)
        except DriftscopeError as error:
            is_complete = bool(error.code and 0 < len(error.message) < MAX_MESSAGE_CHARACTERS)
            outcome, text = ("refused", str(error)) if is_complete else ("crashed", f"a poor message: {error!r}"[:1500])
        except BaseException:
            outcome, text = "crashed", traceback.format_exc()[-1500:]  # a RecursionError has thousands of lines
        rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"outcome": outcome, "text": text, "rss_mib": rss_mib}), flush=True)


if __name__ == "__main__":
    main()
