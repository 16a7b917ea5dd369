"""The built wheel, and environments that it is installed into: fresh ones, which see this one's dependencies but not this project."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.paths import ROOT


def run(*arguments: str | Path, cwd: Path | None = None) -> str:
    """What a command prints; it must succeed, and hears nothing of this process's Python."""
    done = subprocess.run(
        [str(argument) for argument in arguments], cwd=cwd, env=_clean(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _clean() -> dict[str, str]:
    """This process's environment without what leads to this project."""
    return {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_TARGET", "CHUNKSTORE"))
    }


def build_wheel(folder: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    [built] = folder.glob("*.whl")
    return built


def new_environment(folder: Path) -> Path:
    """A fresh environment that sees this one's dependencies, but not this project; returns its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    # A .pth inside an entry that a .pth added is not read: an editable install of this project stays out of sight.
    seen = [entry for entry in sys.path if entry.endswith("site-packages")]
    site_of(folder / "bin" / "python").joinpath("dependencies.pth").write_text("".join(f"{entry}\n" for entry in seen))
    return folder / "bin" / "python"


def site_of(python: Path) -> Path:
    """Where packages of an environment lie."""
    [site] = python.parent.parent.glob("lib/python*/site-packages")
    return site


def pip_install(python: Path, *what: str | Path) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation"]
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, "--ignore-installed", *what)


@dataclass(frozen=True)
class WheelEnvironment:
    """An environment that has this project from its built wheel only."""

    python: Path

    def environ(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """For programs that are started in it: its commands come first in PATH."""
        found = _clean()
        return {**found, "PATH": f"{self.python.parent}{os.pathsep}{found.get('PATH', os.defpath)}", **(env or {})}

    def run(
        self, *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command (``chunkstore``, ``python``, ``bash``) in ``cwd``; how it ended is the caller's to judge."""
        return subprocess.run(
            [str(argument) for argument in arguments],
            cwd=cwd,
            env=self.environ(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture(scope="session")
def wheel_environment(tmp_path_factory: pytest.TempPathFactory) -> WheelEnvironment:
    """The wheel, built and installed once; a conftest.py imports this fixture for its folder."""
    folder = tmp_path_factory.mktemp("wheel")
    python = new_environment(folder / "environment")
    pip_install(python, build_wheel(folder))
    made = WheelEnvironment(python)
    done = made.run("python", "-c", "import chunkstore; print(chunkstore.__file__)", cwd=folder)
    assert Path(done.stdout.strip()).is_relative_to(folder / "environment"), done
    return made
