"""Probe: fill in what to measure, see the command, start it as a process of its own, watch it, cancel it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import streamlit as st
from driftscope_app import page, probe_process, process_card
from driftscope_app.option_form import MEASURED, ask
from driftscope_app.scope import Scope
from driftscope_app.text import plain

from driftscope.builtin import DEMO, sample_prompts
from driftscope.plan import BUILT_IN_SYSTEM_PROMPTS, Plan, described, flag
from driftscope.prompts import PROMPT_SUFFIXES
from probes.errors import InputError

MAX_UPLOAD_MB = 16
MAX_OWN_SYSTEM_PROMPTS = 8
BUILT_IN_TURNS, TYPED_TURNS, UPLOADED_TURNS = "Built-in user turns", "Type them", "Upload a file"


@dataclass
class Asked:
    """What the form says: arguments of `driftscope`, files to write first, and what is still wrong."""

    arguments: list[str] = field(default_factory=lambda: ["probe"])
    files: dict[str, str | bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, option: str, value: object) -> None:
        self.arguments += [option, str(value)]


def main() -> None:
    """The page."""
    scope, runs = page.scope(), page.runs_folder()
    st.title("Probe", anchor=False)
    st.markdown("Measure drafters under prompts of your own. It runs beside the app; you may close this page.")
    for process in probe_process.list_processes(runs):
        process_card.show(process)
    for entry in probe_process.unusable(runs):
        process_card.show_unusable(entry)
    st.header("New probe", anchor=False)
    name = _name(runs)
    asked = Asked()
    _models(scope, asked)
    _system_prompts(runs, name, asked)
    _turns(runs, name, asked)
    _options(asked)
    st.subheader("The command", anchor=False)
    st.code(probe_process.command_line(runs, name, asked.arguments), language="bash", wrap_lines=True)
    problems = [p for p in (probe_process.check_name(runs, name), *asked.problems) if p]
    for problem in problems:
        st.caption(f":material/info: {problem}")
    if st.button("Start the probe", type="primary", icon=":material/play_arrow:", disabled=bool(problems)):
        try:
            probe_process.start(runs, name, asked.arguments, asked.files)
        except (InputError, OSError) as error:
            st.error(plain(str(error)), icon=":material/error:")
            return
        st.session_state.pop("probe_name", None)
        st.rerun()


def _name(runs: Path) -> str:
    if "probe_name" not in st.session_state:
        number = 1
        while probe_process.check_name(runs, f"probe-{number}") is not None:
            number += 1
        st.session_state["probe_name"] = f"probe-{number}"
    return st.text_input("Name of the run", key="probe_name", max_chars=64, width=320, persist_state="session").strip()


def _models(scope: Scope, asked: Asked) -> None:
    plan = scope.runs[0].info.plan if scope.runs else {}
    target, drafters = plan.get("target"), plan.get("drafter")
    is_known = isinstance(target, str) and isinstance(drafters, dict)
    default_target = str(target) if is_known else DEMO
    demo_drafters = {"eagle3": f"{DEMO}:eagle3", "eagle3.1": f"{DEMO}:eagle3.1"}
    default_drafters: Mapping[str, object] = drafters if is_known and isinstance(drafters, dict) else demo_drafters
    left, right = st.columns(2)
    target = left.text_input(
        "Target", default_target, key="probe_target", help=described("target"), persist_state="session"
    )
    lines = right.text_area(
        "Drafters, one a line: NAME=PATH",
        "\n".join(f"{name}={path}" for name, path in default_drafters.items()),
        key="probe_drafters",
        height=90,
        help=described("drafter"),
        persist_state="session",
    )
    if is_known:
        st.caption(f"Filled in from the run {plain(scope.runs[0].ref.name)}: start only what you know.")
    if not target.strip():
        asked.problems.append("Give a target.")
    asked.add("--target", target.strip())
    drafters = [line.strip() for line in lines.splitlines() if line.strip()]
    if not drafters or any("=" not in line for line in drafters):
        asked.problems.append("Give at least one drafter, as NAME=PATH.")
    for line in drafters:
        asked.add("--drafter", line)


def _system_prompts(runs: Path, name: str, asked: Asked) -> None:
    st.subheader("System prompts", anchor=False)
    samples = {file.stem: file for file in sorted((sample_prompts() / "system").glob("*.txt"))}
    chosen = st.pills(
        "Ready-made",
        [*BUILT_IN_SYSTEM_PROMPTS, *samples],
        selection_mode="multi",
        default=["default"],
        key="probe_ready_made",
        format_func=lambda n: n.replace("_", r"\_"),
        help=described("system_prompt"),
        persist_state="session",
    )
    for ready in chosen:
        asked.add("--system-prompt", f"{ready}={samples[ready]}" if ready in samples else ready)
    taken = set(chosen)
    count = int(st.session_state.setdefault("probe_num_own", 0))
    for number in range(count):
        own, text = _written_system_prompt(number, samples)
        if not probe_process.NAME.fullmatch(own) or own in taken:
            asked.problems.append(
                f"System prompt {number + 1} needs a name of its own (letters, digits, dot, dash, underscore)."
            )
        elif not text.strip():
            asked.problems.append(f"System prompt {plain(own)} is empty.")
        taken.add(own)
        _own_system_prompt(runs, name, own, text, asked)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        if count < MAX_OWN_SYSTEM_PROMPTS and st.button("Write one", icon=":material/add:"):
            st.session_state["probe_num_own"] = count + 1
            st.rerun()
        if count and st.button("Remove the last", icon=":material/remove:"):
            st.session_state["probe_num_own"] = count - 1
            st.rerun()
    _uploaded_system_prompts(runs, name, taken, asked)


def _written_system_prompt(number: int, samples: dict[str, Path]) -> tuple[str, str]:
    """The fields of one system prompt -> its name and text."""
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="bottom"):
            own = st.text_input(
                "Name", f"mine-{number + 1}", key=f"probe_own_name_{number}", max_chars=64, persist_state="session"
            ).strip()
            st.selectbox(
                "Start from",
                list(samples),
                index=None,
                key=f"probe_own_from_{number}",
                on_change=_copy_sample,
                args=(number, samples),
                placeholder="an empty one",
            )
        text = st.text_area(
            "System prompt", key=f"probe_own_text_{number}", height=140, max_chars=200_000, persist_state="session"
        )
    return own, text


def _uploaded_system_prompts(runs: Path, name: str, taken: set[str], asked: Asked) -> None:
    with st.expander("Upload system prompts", icon=":material/upload:"):
        uploads = st.file_uploader(
            "Text files, one system prompt each",
            type=["txt", "md"],
            accept_multiple_files=True,
            max_upload_size=1,
            key="probe_uploaded_system_prompts",
        )
    for upload in uploads:
        own = Path(upload.name).stem
        if not probe_process.NAME.fullmatch(own) or own in taken:
            asked.problems.append(f"Rename the uploaded {plain(upload.name)}: its name is taken or has odd characters.")
            continue
        taken.add(own)
        text = _decoded(upload.name, upload.getvalue(), asked)
        _own_system_prompt(runs, name, own, text, asked)


def _copy_sample(number: int, samples: dict[str, Path]) -> None:
    """A ready-made system prompt as the text to edit."""
    chosen = st.session_state[f"probe_own_from_{number}"]
    if chosen is not None:
        st.session_state[f"probe_own_text_{number}"] = samples[chosen].read_text(encoding="utf-8")


def _own_system_prompt(runs: Path, name: str, own: str, text: str, asked: Asked) -> None:
    file = f"system_{own}.txt"
    asked.files[file] = text
    asked.add("--system-prompt", f"{own}={probe_process.typed_file(runs, name, file)}")


def _turns(runs: Path, name: str, asked: Asked) -> None:
    st.subheader("User turns", anchor=False)
    source = st.segmented_control(
        "Where from",
        [BUILT_IN_TURNS, TYPED_TURNS, UPLOADED_TURNS],
        default=BUILT_IN_TURNS,
        required=True,
        key="probe_turns",
        persist_state="session",
    )
    if source == TYPED_TURNS:
        text = st.text_area(
            "One prompt each, an empty line between two",
            key="probe_typed_turns",
            height=160,
            max_chars=1_000_000,
            persist_state="session",
        )
        turns = [turn.strip() for turn in text.replace("\r\n", "\n").split("\n\n") if turn.strip()]
        if not turns:
            asked.problems.append("Type at least one user turn.")
        elif len(turns) < 5:
            st.caption("Fewer than 5 prompts: there will be no intervals.")
        lines = [json.dumps({"messages": [{"role": "user", "content": turn}]}, ensure_ascii=False) for turn in turns]
        asked.files["typed_turns.jsonl"] = "\n".join(lines) + "\n"
        asked.add("--prompts", probe_process.typed_file(runs, name, "typed_turns.jsonl"))
        return
    if source == UPLOADED_TURNS:
        upload = st.file_uploader(
            "A prompt file: chats, MT-Bench turns, ShareGPT, a table, or text",
            type=list(PROMPT_SUFFIXES),
            max_upload_size=MAX_UPLOAD_MB,
            key="probe_uploaded_turns",
        )
        if upload is None:
            asked.problems.append("Upload a prompt file.")
            return
        file = "uploaded" + Path(upload.name).suffix.lower()
        asked.files[file] = upload.getvalue()
        asked.add("--prompts", probe_process.typed_file(runs, name, file))
        if st.checkbox(
            "Replay every assistant turn of a conversation",
            key="probe_all_turns",
            help=described("turns"),
            persist_state="session",
        ):
            asked.add("--turns", "all")
    asked.add("--num-prompts", ask("num_prompts", first=8))


def _options(asked: Asked) -> None:
    st.subheader("What to measure", anchor=False)
    engines = [
        name
        for name in get_args(Plan.model_fields["engine"].annotation)
        if name != "vllm" or find_spec("vllm") is not None
    ]
    special: dict[str, Any] = {
        "max_new_tokens": {"first": 48},
        "engine": {"only": engines},
        "device": {"only": ["cpu", "cuda"]},
    }
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        chosen = {name: ask(name, **special.get(name, {})) for name in MEASURED}
    for name, value in chosen.items():
        if name != "temperature":
            asked.add(flag(name), value)
    if not all(part.isascii() and part.isdigit() for part in chosen["context_tokens"].split(",")):
        asked.problems.append("Context lengths are whole numbers with commas between, for instance 0,1024.")
    if chosen["temperature"]:
        asked.add("--temperature", f"{chosen['temperature']:g}")
        if chosen["engine"] != "vllm":
            _sampling(chosen["engine"], asked)


def _sampling(engine: str, asked: Asked) -> None:
    """A temperature of 0 has none of these. Drafts can be drawn in the real loop only, by one drafter."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        top_k, top_p = ask("top_k"), ask("top_p")
        method = ask("draft_sample_method") if engine == "live" else "greedy"
    if top_k:
        asked.add("--top-k", top_k)
    if top_p < 1:
        asked.add("--top-p", f"{top_p:g}")
    if method != "greedy":
        asked.add("--draft-sample-method", method)
        if asked.arguments.count("--drafter") > 1:
            asked.problems.append("With probabilistic drafts each drafter writes its own text: give one drafter.")


def _decoded(name: str, content: bytes, asked: Asked) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        asked.problems.append(f"{plain(name)} is not UTF-8 (byte {error.start}): convert it.")
        return ""


main()
