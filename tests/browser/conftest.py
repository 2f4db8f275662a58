"""The app in a real Chromium, on a small real run: the built-in target and drafters, measured here.

Screenshots go to build/screenshots. Needs Chromium (`make test-browser` installs it) and axe-core in .venv/node.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, expect, sync_playwright

from driftscope.builtin import sample_prompts

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
AXE = ROOT / ".venv" / "node" / "node_modules" / "axe-core" / "axe.min.js"
SECONDS = 1_000  # playwright counts in ms
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

expect.set_options(timeout=60 * SECONDS)  # the machine may be busy: this bounds a hang, it measures nothing


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--demo-run", type=Path, help="a copy of this run instead of measuring one (saves a minute)")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder with one real run, `demo`: two drafters, three system prompts, two context lengths, six prompts."""
    folder = tmp_path_factory.mktemp("runs")
    if measured := request.config.getoption("--demo-run"):
        shutil.copytree(measured, folder / "demo.drift")
        return folder
    system = sample_prompts() / "system"
    command = [
        *(sys.executable, "-c", "import sys; from driftscope.cli import main; sys.exit(main())", "probe"),
        *("--target", "demo", "--drafter", "eagle3=demo:eagle3", "--drafter", "eagle3.1=demo:eagle3.1"),
        *("--system-prompt", "default", "--system-prompt", f"persona={system / 'persona.txt'}"),
        *("--system-prompt", f"policy={system / 'policy.txt'}", "--context-tokens", "0,384"),
        *("--num-prompts", "6", "--max-new-tokens", "32", "--out", str(folder / "demo.drift")),
    ]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return folder


DRIFTSCOPE = (sys.executable, "-c", "import sys; from driftscope.cli import main; sys.exit(main())")
_ADDRESS = re.compile(rb"(http://127\.0\.0\.1:\d+/)\?token=([\w-]{20,})")


class Started(NamedTuple):
    """A running app, as its start printed it."""

    url: str  # without a slash at its end
    token: str

    @property
    def address(self) -> str:
        """What a user opens."""
        return f"{self.url}/?token={self.token}"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def printed_address(process: subprocess.Popen[bytes], read: Callable[[], bytes]) -> Started:
    """Waits until the app has printed its address; `read` gives what it has printed so far."""
    deadline = time.monotonic() + 180  # bounds a hang
    while (found := _ADDRESS.search(read())) is None:
        assert process.poll() is None, f"the app has ended with {process.returncode}: {read().decode()}"
        assert time.monotonic() < deadline, read().decode()
        time.sleep(0.1)
    return Started(found[1].decode().rstrip("/"), found[2].decode())


@pytest.fixture(scope="session")
def app(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """`driftscope app` on that folder."""
    printed = tmp_path_factory.mktemp("app") / "printed"
    with printed.open("wb") as output:
        command = [*DRIFTSCOPE, "app", str(runs), "--no-browser", "--port", str(free_port())]
        process = subprocess.Popen(command, cwd=runs, stdout=output)
    try:
        yield printed_address(process, printed.read_bytes)
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    executable = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    assert executable, "there is no Chromium: make test-browser installs it"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Visitor:
    """A page that remembers what went wrong on it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.errors: list[str] = []
        self.foreign: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._on_request)
        page.on("response", self._on_response)

    @property
    def is_narrow(self) -> bool:
        """The sidebar lies over the page."""
        return self.page.viewport_size is not None and self.page.viewport_size["width"] < 600

    def _on_console(self, message: ConsoleMessage) -> None:
        # Opened below its root, Streamlit looks for its own base path by trial: a 404 on _stcore belongs to that.
        if message.type == "error" and "/_stcore/" not in message.location.get("url", ""):
            self.errors.append(message.text)

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.url, self.url.replace("http", "ws"), "data:", "blob:")):
            self.foreign.append(request.url)

    def _on_response(self, response: Response) -> None:
        if response.status >= 400 and "/_stcore/" not in response.url:
            self.errors.append(f"{response.status} {response.url}")

    def open(self, path: str = "/") -> None:
        """A page by its address."""
        self.page.goto(self.url + path)
        self.settle()

    def go(self, title: str) -> None:
        """A page by the navigation; in a narrow window it is behind the menu button."""
        if self.page.get_by_role("heading", level=1).all_inner_texts() == [title]:
            return
        menu = self.page.get_by_test_id("stExpandSidebarButton")
        if self.is_narrow and menu.is_visible():
            menu.click()
        self.page.get_by_role("link", name=title, exact=True).first.click()
        expect(self.page.get_by_role("heading", level=1)).to_have_text(title)
        self.settle()

    def settle(self) -> None:
        """Until Streamlit says that it is done and every chart is drawn."""
        expect(self.page.get_by_role("heading", level=1)).to_be_visible()
        app = self.page.get_by_test_id("stApp")
        expect(app).to_have_attribute("data-test-script-state", "notRunning")
        self.page.wait_for_timeout(300)
        expect(app).to_have_attribute("data-test-script-state", "notRunning")
        for chart in self.page.get_by_test_id("stPlotlyChart").all():
            expect(chart.locator(".main-svg").first).to_be_attached()

    def screenshot(self, name: str) -> None:
        """The whole page, at the window's width."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        size = self.page.viewport_size
        assert size is not None
        height = self.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        self.page.set_viewport_size({"width": size["width"], "height": min(max(size["height"], height + 20), 5_000)})
        self.page.wait_for_timeout(400)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")
        self.page.set_viewport_size(size)

    def violations(self) -> list[dict[str, Any]]:
        """What axe-core calls serious or critical."""
        return violations(self.page)

    def check(self) -> None:
        """Nothing went wrong, nothing was asked of another machine."""
        assert self.errors == []
        assert self.foreign == []


def violations(page: Page) -> list[dict[str, Any]]:
    """What axe-core calls serious or critical on the page as it stands."""
    assert AXE.is_file(), "axe-core is missing: make test-browser installs it"
    page.evaluate(AXE.read_text(encoding="utf-8"))
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        {"id": v["id"], "help": v["help"], "nodes": [n["html"][:300] for n in v["nodes"][:4]]}
        for v in result["violations"]
        if v["impact"] in ("serious", "critical")
    ]


def describe(violations: list[dict[str, Any]]) -> str:
    """For an assertion's message."""
    return json.dumps(violations, indent=1, ensure_ascii=False)


MODES = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}


@pytest.fixture
def visit(browser: Browser, app: Started, request: pytest.FixtureRequest) -> Iterator[Visitor]:
    """A fresh window; parametrize indirectly with a key of MODES for another than light."""
    mode = getattr(request, "param", "light")
    context = browser.new_context(**MODES[mode])
    visitor = Visitor(context.new_page(), app.url)
    visitor.page.goto(app.address)
    visitor.page.wait_for_url(lambda url: "token" not in url)
    visitor.settle()
    yield visitor
    context.close()
