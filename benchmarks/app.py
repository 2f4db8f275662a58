"""How long the app takes until its first chart and after a filter change, and how much memory its server holds.

`python -m benchmarks.app [--demo RUN]`: on the demo run and on a synthetic run of a million (round, depth) rows, each in a
fresh server, in a real Chromium. Times are wall-clock on whatever else the machine is doing; nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from driftscope.runs import read_run
from tests.synthetic_run import make_info, make_records, write_run

PAGES = ("Overview", "Compare", "Depth", "Heads", "Fusion", "Context", "Rounds")
SYSTEM_PROMPTS = ("default", "none", "short", "persona", "policy", "json_only", "tools", "german")
NUM_FILTER_CHANGES = 5
TIMEOUT_MS = 120_000


def million_rows(folder: Path) -> Path:
    """2 drafters, 8 system prompts, 3 context lengths, 12 prompts of 252 tokens, K = 7, 9 heads."""
    path = folder / "million.drift"
    if not path.exists():
        records = make_records(
            num_prompts=12,
            system_prompts=SYSTEM_PROMPTS,
            contexts=(0, 512, 1536),
            num_response_tokens=252,
            depth=7,
            num_heads=9,
        )
        write_run(path, records, make_info(depth=7, num_heads=9))
    return path


class Server:
    """`driftscope app` on a folder that holds one run."""

    def __init__(self, run: Path) -> None:
        self._folder = tempfile.TemporaryDirectory()
        target = Path(self._folder.name) / run.name
        shutil.copytree(run, target, copy_function=os.link)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        code = "import sys; from driftscope.cli import main; sys.exit(main())"
        arguments = ["app", self._folder.name, "--no-browser", "--port", str(port)]
        self.process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = next(word for line in self.process.stdout for word in line.split() if "?token=" in word)

    def memory_mb(self) -> tuple[float, float]:
        """Resident now and at most, of the server (the process that `driftscope app` started)."""
        [child] = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        lines = Path(f"/proc/{child}/status").read_text().splitlines()
        kib = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS", "VmHWM"))}
        return int(kib["VmRSS"]) / 1024, int(kib["VmHWM"]) / 1024

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._folder.cleanup()


def wait_for_charts(page: Page) -> None:
    """The first chart is drawn."""
    page.wait_for_selector(".js-plotly-plot .main-svg", timeout=TIMEOUT_MS)


def wait_for_title(page: Page, title: str) -> None:
    """The page is another one now."""
    page.get_by_role("heading", level=1, name=title, exact=True).wait_for(timeout=TIMEOUT_MS)


def wait_until_done(page: Page) -> None:
    """The script has ended and the page is not stale."""
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=TIMEOUT_MS)


def wait_for_address(page: Page, part: str) -> None:
    """The script that answers the last click has ended: its last act is to write what it shows into the URL."""
    page.wait_for_url(lambda url: part in url, timeout=TIMEOUT_MS)
    wait_until_done(page)


def long_conversation(folder: Path) -> Path:
    """One conversation of 32,000 tokens, replayed from every position with both drafters."""
    path = folder / "long.drift"
    if not path.exists():
        records = make_records(
            num_prompts=1, system_prompts=("default",), num_response_tokens=32_000, depth=7, num_heads=9
        )
        write_run(path, records, make_info(depth=7, num_heads=9))
    return path


def measure_rounds(run: Path, page: Page) -> None:
    """Opening a long conversation, another round of it, another page of it."""
    print(f"\n{run.stem}: a conversation of 32,000 tokens")
    server = Server(run)
    try:
        page.goto(server.url)
        wait_for_charts(page)
        wait_until_done(page)
        begin = time.perf_counter()
        page.get_by_role("link", name="Rounds", exact=True).click()
        page.locator(".round").first.wait_for(timeout=TIMEOUT_MS)
        print(f"  until its first tokens           {seconds(begin):6.2f} s")
        wait_until_done(page)
        for what, control, address in (
            ("another round", page.locator(".round").nth(5), "round=6"),
            ("another page", page.get_by_test_id("stPagination").get_by_role("button", name="Next"), "token="),
        ):
            begin = time.perf_counter()
            control.click()
            wait_for_address(page, address)
            print(f"  {what:<32} {seconds(begin):6.2f} s")
        now, most = server.memory_mb()
        print(f"  server memory: {now:,.0f} MB now, {most:,.0f} MB at most")
    finally:
        server.stop()


def seconds(begin: float) -> float:
    return time.perf_counter() - begin


def measure(run: Path, page: Page) -> None:
    counts = read_run(run).info.counts
    print(f"\n{run.stem}: {counts.num_rounds:,} rounds, {counts.num_depth_rows:,} (round, depth) rows")
    server = Server(run)
    try:
        begin = time.perf_counter()
        page.goto(server.url)
        wait_for_charts(page)
        print(f"  first chart of the first visit   {seconds(begin):6.2f} s")
        wait_until_done(page)
        print(f"  first visit, all drawn           {seconds(begin):6.2f} s")
        begin = time.perf_counter()
        page.goto(server.url)
        wait_for_charts(page)
        print(f"  first chart of a later visit     {seconds(begin):6.2f} s")
        wait_until_done(page)
        for title in PAGES[1:]:
            took = []
            for _ in range(2):
                page.get_by_role("link", name="Definitions", exact=True).click()
                wait_for_title(page, "Definitions")
                begin = time.perf_counter()
                page.get_by_role("link", name=title, exact=True).click()
                wait_for_title(page, title)
                wait_for_charts(page)
                took.append(seconds(begin))
                wait_until_done(page)
            print(f"  {title:<10} first chart: {took[0]:6.2f} s, again {took[1]:6.2f} s")
        page.get_by_role("link", name="Compare", exact=True).click()
        wait_for_title(page, "Compare")
        wait_for_charts(page)
        wait_until_done(page)
        took = []
        for number in range(NUM_FILTER_CHANGES):
            chip = page.get_by_test_id("stSidebar").get_by_role("button", name=SYSTEM_PROMPTS[number], exact=True)
            begin = time.perf_counter()
            chip.click()
            wait_for_address(page, f"system_prompt={SYSTEM_PROMPTS[number]}")
            took.append(seconds(begin))
        print(f"  Compare, after a filter change   {statistics.median(took):6.2f} s (median of {len(took)})")
        now, most = server.memory_mb()
        print(f"  server memory: {now:,.0f} MB now, {most:,.0f} MB at most")
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo.drift"), help="the demo run (`make demo`)")
    parser.add_argument("--scratch", type=Path, default=Path("build/bench"), help="where the synthetic run is kept")
    options = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    executable = next(
        found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))
    )
    options.scratch.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for run in (options.demo, million_rows(options.scratch)):
            if run.exists():
                measure(run, browser.new_page(viewport={"width": 1280, "height": 800}))
            else:
                print(f"{run} is not there: make demo")
        measure_rounds(long_conversation(options.scratch), browser.new_page(viewport={"width": 1280, "height": 800}))
        browser.close()


if __name__ == "__main__":
    main()
