"""Whatever stands in a runs folder costs its own card or row a text, and every page shows the others."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.conftest import PAGES, OpenApp, charts, texts

Damage = Callable[[Path], object]


def said(at: object) -> str:
    """Words without the escapes that keep names from being markup."""
    return texts(at).replace("\\", "")  # type: ignore[arg-type]


def sparse(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(3 << 30)


def record(**more: object) -> str:
    good = {"command": "driftscope probe", "out": "x.drift", "pid": 2, "process_start": 1, "started_at": 0.0}
    return json.dumps(good | more)


BAD_RECORDS: dict[str, Damage] = {
    "half": lambda file: file.write_text("{"),
    "empty object": lambda file: file.write_text("{}"),
    "empty": lambda file: file.write_text(""),
    "list": lambda file: file.write_text("[]"),
    "deep": lambda file: file.write_text("[" * 100_000),
    "not UTF-8": lambda file: file.write_bytes(b'{"command": "\xff"}'),
    "pipe": os.mkfifo,
    "giant": sparse,
    "folder": Path.mkdir,
    "link": lambda file: file.symlink_to("/etc/hostname"),
    "link to nothing": lambda file: file.symlink_to("nowhere"),
    "link to itself": lambda file: file.symlink_to(file),
    "device": lambda file: file.symlink_to("/dev/zero"),
    "command is a number": lambda file: file.write_text(record(command=1)),
    "out is a list": lambda file: file.write_text(record(out=["x"])),
    "out has a NUL": lambda file: file.write_text(record(out="a\0b")),
    "kind unknown": lambda file: file.write_text(record(kind="other")),
    "kind is an object": lambda file: file.write_text(record(kind={})),
    "started never": lambda file: file.write_text(record().replace("0.0", "NaN")),
    "started too late": lambda file: file.write_text(record(started_at=1e308)),
    "pid infinite": lambda file: file.write_text(record().replace('"pid": 2', '"pid": Infinity')),
    "pid huge": lambda file: file.write_text(record().replace('"pid": 2', '"pid": ' + "9" * 5_000)),
}


@pytest.fixture
def folder(tmp_path: Path, runs: Path) -> Path:
    """A good run and a good, ended process."""
    shutil.copytree(runs / "older.drift", tmp_path / "demo.drift")
    good = tmp_path / ".probes" / "good"
    good.mkdir(parents=True)
    (good / "process.json").write_text(record(out=str(tmp_path / "good.drift")))
    (good / "output.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("damage", BAD_RECORDS.values(), ids=BAD_RECORDS)
def test_a_bad_process_costs_its_card_only(open_app: OpenApp, folder: Path, damage: Damage) -> None:
    bad = folder / ".probes" / "bad"
    bad.mkdir()
    damage(bad / "process.json")
    at = open_app("probe", folder=folder)
    assert "**good** · complete" in said(at)
    [warning] = [str(w.value).replace("\\", "") for w in at.warning]
    assert warning.startswith("**bad**: process.json ")
    assert len(warning) < 1_000
    assert charts(open_app("overview", folder=folder))


def test_what_a_process_printed_is_read_to_a_limit_and_never_through_links(open_app: OpenApp, folder: Path) -> None:
    secret = folder / "secret"
    secret.write_text("1/2 secret words\n")
    for number, damage in enumerate((os.mkfifo, sparse, Path.mkdir, lambda file: file.symlink_to(secret))):
        for file in ("log.txt", "output.json"):
            process = folder / ".probes" / f"p{number}-{file[0]}"
            process.mkdir()
            (process / "process.json").write_text(record())
            damage(process / file)
    odd = folder / ".probes" / "odd"
    odd.mkdir()
    (odd / "process.json").write_text(record(pid=os.getpid()))
    (odd / "output.json").write_text('{"error": {"where": ["x"], "message": 7, "remedy": null}}')
    (odd / "log.txt").write_text(f"5/3 beyond\n{'9' * 5_000}/3 x\n")
    at = open_app("probe", folder=folder)
    assert said(at).count("· failed") == 9
    assert "**good** · complete" in said(at)
    assert "secret words" not in said(at) + "".join(str(code.value) for code in at.code)
    assert any(str(e.value).replace("\\", "") == "['x']: 7" for e in at.error)


BAD_PROBES: dict[str, Damage] = {
    "file": lambda path: path.write_text("x"),
    "link": lambda path: path.symlink_to("/etc"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("damage", BAD_PROBES.values(), ids=BAD_PROBES)
def test_the_processes_folder_may_be_anything(open_app: OpenApp, folder: Path, damage: Damage) -> None:
    from driftscope_app import probe_process

    from probes.errors import InputError

    shutil.rmtree(folder / ".probes")
    damage(folder / ".probes")
    at = open_app("probe", folder=folder)
    assert "**.probes**: this is a link or not a folder" in said(at)
    assert charts(open_app("overview", folder=folder))
    with pytest.raises((InputError, OSError)):
        probe_process.start(folder, "mine", ["probe"], {})


@pytest.mark.parametrize("page", PAGES)
def test_every_page_shows_the_others(open_app: OpenApp, folder: Path, page: str) -> None:
    for number, damage in enumerate(BAD_RECORDS.values()):
        bad = folder / ".probes" / f"bad-{number}"
        bad.mkdir()
        damage(bad / "process.json")
    for name in (b"bad\xff", b"<b>x", b"a\nb", b"[x](y)", b".hidden"):
        (Path(os.fsdecode(os.fsencode(folder / ".probes") + b"/" + name))).mkdir()
        (Path(os.fsdecode(os.fsencode(folder / ".probes") + b"/" + name)) / "process.json").write_text(record())
    (folder / "file.drift").write_text("x")
    os.mkfifo(folder / "pipe.drift")
    (folder / "loop.drift").symlink_to("loop.drift")
    (folder / "out.drift").symlink_to("/etc")
    (folder / ".drift").mkdir()
    (folder / "empty.drift").mkdir()
    at = open_app(page, folder=folder)
    if page not in ("probe", "definitions"):
        assert at.sidebar.multiselect(key="pick_run").value == ["demo"]
    if page in ("overview", "compare", "depth", "heads", "fusion", "rounds"):
        assert charts(at)
    if page == "overview":
        assert [f"**{name}**" in said(at) for name in ("file.drift", "pipe.drift", "loop.drift", "empty.drift")] == [
            True
        ] * 4
        assert "**out.drift**: a link that leads out of this folder" in said(at)
    if page == "probe":
        assert "**good** · complete" in said(at)
        assert len(at.warning) == len(BAD_RECORDS) + 5


@pytest.mark.parametrize("inside", ["run.json", "prompts.parquet", "rounds", "depths", "rounds/part-000000.parquet"])
def test_a_run_with_a_link_out_of_the_folder_is_not_shown(
    open_app: OpenApp, folder: Path, tmp_path_factory: pytest.TempPathFactory, inside: str
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "moved"
    run = shutil.copytree(folder / "demo.drift", folder / "sly.drift")
    (run / inside).rename(elsewhere)
    (run / inside).symlink_to(elsewhere)
    at = open_app("overview", folder=folder, run="sly")
    assert at.sidebar.multiselect(key="pick_run").options == ["demo"]
    assert f"**sly.drift**: {inside} is a link that leads out of this folder" in said(at)


def test_names_that_are_no_text_or_look_like_markup(open_app: OpenApp, folder: Path) -> None:
    names = (b"a[b]", b"a*", b"![x](y)", b"<b>", b"new\nline", b"%20", b"'\"")
    for name in names:
        shutil.copytree(folder / "demo.drift", os.fsdecode(os.fsencode(folder) + b"/" + name + b".drift"))
    shutil.copytree(folder / "demo.drift", os.fsdecode(os.fsencode(folder) + b"/bad\xff.drift"))
    at = open_app("overview", folder=folder)
    assert set(at.sidebar.multiselect(key="pick_run").options) == {"demo", *(name.decode() for name in names)}
    assert "its name is not UTF-8: rename it" in said(at)
    for name in names:
        assert charts(open_app("compare", folder=folder, run=name.decode()))


def test_what_a_run_says_of_itself_is_no_markup(open_app: OpenApp, folder: Path) -> None:
    """An image in it would be fetched from where the run says."""
    file = folder / "demo.drift" / "run.json"
    stored = json.loads(file.read_text())
    stored["target"]["name"] = "**b** ![x](http://evil.example/x) <b>h</b>"
    stored["provenance"]["attention_backend"] = "![y](http://evil.example/y)"
    file.write_text(json.dumps(stored))
    at = open_app("overview", folder=folder)
    shown = "\n".join(at.table[0].value["value"])
    for markup in ("![x](", "![y](", "**b**", "<b>"):
        assert markup not in shown
        assert markup in shown.replace("\\", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b *c*", r"a\_b \*c\*"),
        ("see `driftscope advise`.", r"see driftscope advise\."),
        ("one ` only", r"one \` only"),
        ("``x` [a](b)", r"\`x \[a\]\(b\)"),
        (r"\`a`", r"\\a"),
        ("bad\udcff", r"bad\\udcff"),
    ],
)
def test_text_for_a_markdown_place(text: str, expected: str) -> None:
    from driftscope_app.text import plain

    assert plain(text) == expected
