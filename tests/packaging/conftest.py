"""Builds the sdist and the wheel, and installs the wheel in clean environments outside the checkout: `make test-packaging`.

Every environment also holds a foreign top-level package `app`, as many projects have one. Nothing here imports driftscope:
what is tested is what an installation does in processes of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
FOREIGN_APP = "a project of the user's own"
LIMIT_SECONDS = 900  # for one command: installing torch, converting the demo target
SITE = "import sysconfig; print(sysconfig.get_paths()['purelib'])"


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel in it. Commands run in `work`, an empty folder outside of any checkout."""

    folder: Path
    work: Path

    def run(self, *command: str | Path, num_code: int = 0) -> str:
        """stdout of a command of this environment; its exit code must be `num_code`, and no traceback on stderr."""
        return self._run(command, num_code).stdout

    def run_for_error(self, *command: str | Path) -> str:
        """stderr of a command that cannot be done: exit code 2, no traceback."""
        return " ".join(self._run(command, 2).stderr.split())  # the console wraps lines

    def _run(self, command: Sequence[str | Path], num_code: int) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]],
            cwd=self.work,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        said = f"{command}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        assert result.returncode == num_code, said
        assert "Traceback" not in result.stderr, said
        return result

    def python(self, code: str) -> str:
        return self.run("python", "-c", code).strip()

    @property
    def environ(self) -> dict[str, str]:
        """Nothing of the tests' own environment leads Python or pip elsewhere; caches of the demo target stay here."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
        return kept | {"XDG_CACHE_HOME": str(self.work / "cache"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    @property
    def site_packages(self) -> Path:
        return Path(self.python(SITE))


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("packaging")
    yield folder
    shutil.rmtree(folder)  # environments are large


@pytest.fixture(scope="session")
def sdist(scratch: Path) -> Path:
    return build("--sdist", CHECKOUT, scratch / "sdist")


@pytest.fixture(scope="session")
def wheel(scratch: Path) -> Path:
    return build("--wheel", CHECKOUT, scratch / "wheel")


def build(kind: str, source: Path, folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "build", "-q", kind, "--outdir", folder, source], check=True)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="session")
def helpers(scratch: Path) -> Path:
    """Builders of test data (`tests.tiny_models` and the like), away from the checkout's driftscope and probes."""
    folder = scratch / "helpers"
    for pattern in ("tests/*.py", "training/*.py"):
        for path in CHECKOUT.glob(pattern):
            place = folder / path.relative_to(CHECKOUT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
    return folder


def install(scratch: Path, name: str, *requirements: str) -> Installed:
    folder = scratch / name
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    installed = Installed(folder / "venv", folder / "work")
    installed.work.mkdir()
    constraints = CHECKOUT / "constraints.txt"
    installed.run("python", "-m", "pip", "install", "-q", "-c", constraints, *requirements)
    package = installed.site_packages / "app"
    package.mkdir()
    (package / "__init__.py").write_text(f"OWNER = {FOREIGN_APP!r}\n")
    return installed


@pytest.fixture(scope="session")
def base(scratch: Path, wheel: Path) -> Installed:
    """`pip install driftscope`: reads, checks, compares."""
    return install(scratch, "base", str(wheel))


@pytest.fixture(scope="session")
def with_app(scratch: Path, wheel: Path) -> Installed:
    return install(scratch, "with-app", f"{wheel}[app]")


@pytest.fixture(scope="session")
def with_probe(scratch: Path, wheel: Path) -> Installed:
    """With torch as `constraints.txt` pins it."""
    return install(scratch, "with-probe", f"{wheel}[probe]")


@pytest.fixture(scope="session")
def run_folder(base: Installed, helpers: Path, scratch: Path) -> Path:
    """A folder with a made-up run, written by the installed package."""
    folder = scratch / "runs"
    folder.mkdir()
    write_run(base, helpers, folder / "made-up.drift")
    return folder


def write_run(installed: Installed, helpers: Path, path: Path) -> None:
    installed.python(
        f"import sys; sys.path.append({str(helpers)!r})\n"
        "from pathlib import Path\n"
        "from tests.synthetic_run import write_run\n"
        f"write_run(Path({str(path)!r}))"
    )
