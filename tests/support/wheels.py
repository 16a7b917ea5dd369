"""The built wheel, and environments that it is installed into: fresh ones, which see this one's dependencies but not this project."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

from tests.support.paths import ROOT

__all__ = ["build_wheel", "new_environment", "pip_install", "run"]


def run(*arguments: str | Path, cwd: Path | None = None) -> str:
    """What a command prints; it must succeed, and hears nothing of this process's Python."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_TARGET"))}
    done = subprocess.run(
        [str(argument) for argument in arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


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
