"""docs/first-hour.md is the script: its files and commands, typed from the built wheel, print what the page says."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.wheels import WheelEnvironment

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
PAGE = (ROOT / "docs" / "first-hour.md").read_text(encoding="utf-8")


def commands() -> list[tuple[str, list[str]]]:
    """The commands in order, each with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def test_the_first_hour(wheel_environment: WheelEnvironment, tmp_path: Path) -> None:
    for module in ("boto3", "duckdb", "moto", "polars", "pyarrow"):
        pytest.importorskip(module, reason=f"not tested: the first hour ({module} is not installed)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    work, printed = tmp_path / "work", tmp_path / "printed"
    work.mkdir()
    printed.mkdir()
    for name, text in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        (work / name).write_text(text.replace("5555", port))
    typed = commands()
    # One shell, as a person has it: it knows its jobs, which end with it.
    lines = ["set -m", "trap 'kill $(jobs -p)' EXIT"]
    for number, (command, _) in enumerate(typed):
        lines.append(f"{{ {command}\n}} > {printed}/{number} 2>&1")
    script = "\n".join(lines).replace("5555", port)
    wheel_environment.run("bash", "-c", script, cwd=work, env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    for number, (command, expected) in enumerate(typed):
        got = (printed / str(number)).read_text()
        words = (word for line in expected for word in line.split())
        pattern = r"\s+".join(re.escape(word) for word in words).replace(r"\s+\.\.\.", ".*").replace(r"\.\.\.", ".*")
        assert re.fullmatch(rf"\s*{pattern}\s*", got, re.DOTALL), f"{command}\n{got}"
