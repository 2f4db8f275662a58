"""What the documents point to is there: files, headings, commands with their options, make targets, modules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from typer.main import get_command

from driftscope.cli import app
from probes.record import COLUMNS

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(
            path
            for folder in ("docs", "driftscope", "sample_prompts", "tests", "training")
            for path in (ROOT / folder).rglob("*.md")
        ),
    ]
)
SOURCES = sorted(
    path
    for folder in ("app", "benchmarks", "driftscope", "probes", "tests", "training")
    for path in (ROOT / folder).rglob("*.py")
    if path != Path(__file__)
)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
MENTION = re.compile(r"\bdocs/[\w./]+\.md(?:#[\w-]+)?")
OUTSIDE = re.compile(r"\bdesign\.md|\bshared/|\(design\b|\bdesign \d|\beagle_facts|/work/")
COMMAND = re.compile(r"\bdriftscope ([a-z]+)((?:(?!\bdriftscope )[^`\n|&>])*)")
PATH = re.compile(r"(?<![\w./:-])(?:app|benchmarks|docs|driftscope|probes|tests|training)/[\w./-]*\w")
IN_THE_WHEEL = ("driftscope/_app", "driftscope/_sample_prompts")
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
MAX_README_WORDS = 900
MAX_README_SENTENCE = 35


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def code_of(document: Path) -> list[str]:
    """The lines of code of a document, fenced or inline, continued lines joined, comments cut off."""
    text = read(document)
    blocks = [*FENCE.findall(text), *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))]
    return [line.split(" # ")[0] for block in blocks for line in re.sub(r"\\\n\s*", "", block).splitlines()]


def headings(document: Path) -> set[str]:
    """GitHub's anchors of a document's headings."""
    found: list[str] = []
    for title in re.findall(r"^#+ (.+?)\s*$", FENCE.sub("", read(document)), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return set(found)


def is_there(target: str, document: Path) -> bool:
    """Whether a link of `document` leads to a file, and to a heading in it."""
    file, _, anchor = target.partition("#")
    path = (document.parent / file) if file else document
    return path.exists() and (not anchor or anchor in headings(path))


def test_links_lead_to_files_and_headings() -> None:
    links = [
        (document, link)
        for document in DOCUMENTS
        for link in LINK.findall(FENCE.sub("", read(document)))
        if not re.match(r"[a-z]+:", link)
    ]
    assert len(links) > 100
    assert [(name(document), link) for document, link in links if not is_there(link, document)] == []


def test_sources_cite_documents_that_are_there() -> None:
    cited = [(path, mention) for path in SOURCES for mention in MENTION.findall(read(path))]
    assert len(cited) > 20
    assert [(name(path), mention) for path, mention in cited if not is_there(mention, ROOT / "README.md")] == []


def test_nothing_cites_a_document_outside_the_repository() -> None:
    cited = [(name(path), found.group()) for path in [*DOCUMENTS, *SOURCES] for found in OUTSIDE.finditer(read(path))]
    assert cited == []


def test_every_command_in_a_document_is_understood() -> None:
    group: Any = get_command(app)
    options = {}
    for command_name, command in group.commands.items():
        members = [command, *getattr(command, "commands", {}).values()]
        params = [param for member in members for param in member.params]
        options[command_name] = {"--help", *(opt for param in params for opt in (*param.opts, *param.secondary_opts))}
    asked = [
        (document, command, set(OPTION.findall(re.sub(r'"[^"]*"', "", rest))))
        for document in DOCUMENTS
        for line in code_of(document)
        for command, rest in COMMAND.findall(line)
    ]
    assert {command for _, command, _ in asked} == set(options)
    assert [
        (name(document), command, sorted(unknown))
        for document, command, given in asked
        if (unknown := given - options[command])
    ] == []


def test_every_make_target_and_module_in_a_document_is_there() -> None:
    rules = "\n".join(read(path) for path in [ROOT / "Makefile", *ROOT.glob("*.mk")])
    targets = {target for line in re.findall(r"^([\w -]+):(?!=)", rules, re.MULTILINE) for target in line.split()}
    lines = [(document, line) for document in DOCUMENTS for line in code_of(document)]
    made = [(document, target) for document, line in lines for target in re.findall(r"\bmake ([a-z][\w-]*)", line)]
    assert {target for _, target in made} >= {"demo", "test", "app"}
    assert [(name(document), target) for document, target in made if target not in targets] == []
    run = [
        (document, module)
        for document, line in lines
        for module in re.findall(r"python -m ((?:benchmarks|driftscope|probes|training)(?:\.\w+)*)", line)
    ]
    files = [(document, module, ROOT / module.replace(".", "/")) for document, module in run]
    assert len(files) > 10
    assert [
        (name(document), module)
        for document, module, path in files
        if not path.with_suffix(".py").exists() and not (path / "__main__.py").exists()
    ] == []


def test_every_path_in_a_document_is_there() -> None:
    named = {
        (document, path)
        for document in DOCUMENTS
        if document.name != "CHANGELOG.md"  # it names what was moved, too
        for path in PATH.findall(LINK.sub("]", read(document)))
        if not path.startswith(IN_THE_WHEEL) and not re.search(r"[A-Z]{4}|test_$", Path(path).stem)
    }
    assert len(named) > 50
    assert sorted((name(document), path) for document, path in named if not (ROOT / path).exists()) == []


def test_the_readme_is_short() -> None:
    text = read(ROOT / "README.md")
    assert len(text.split()) <= MAX_README_WORDS
    assert {"make demo", "make test"} <= set(re.findall(r"^make \w+", text, re.MULTILINE))
    prose = re.sub(r"^(?:\|.*|#.*|!\[.*)$", "\n", FENCE.sub("\n\n", LINK.sub("]", text)), flags=re.MULTILINE)
    blocks = re.split(r"\n\s*\n|\n(?=- )", prose)
    sentences = [part.split() for block in blocks for part in re.split(r"(?<=[.:?!])\s+", block)]
    assert [" ".join(words) for words in sentences if len(words) > MAX_README_SENTENCE] == []


def test_tensor_axes_are_those_of_the_table() -> None:
    table = read(ROOT / "docs" / "architecture.md").split("## Tensor axes")[1].split("\n## ")[0]
    known = {axis for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for axis in re.findall(r"`(\w+)`", row)}
    shapes = re.compile(r'(?:Float|Int|Bool|UInt8)\[[\w.]+, *"([^"]*)"')
    used = {
        axis.strip("*")
        for path in SOURCES
        if path.is_relative_to(ROOT / "probes")
        for shape in shapes.findall(read(path))
        for axis in shape.split()
    }
    assert used - {"_", "..."} <= known
    assert known <= used | {axis for column in COLUMNS.values() for axis in column.axes.split()}
