"""Jars from Maven Central, fetched once into the cache folder.

Promises: what a name has is complete, or nothing of it counts; processes that ask at once fetch once. Leaves out: checking what Maven
itself checks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.servers.base import ServerMissing, cache_folder, exclusive
from tests.support.servers.hdfs_jars import java_command

__all__ = ["compiled", "fetched"]

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>chunkstore.tests</groupId><artifactId>{}</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}</dependencies>
</project>
"""


def fetched(name: str, artifacts: Sequence[str], files: Sequence[str] = ()) -> Path:
    """The folder of ``name``: ``artifacts`` (GROUP:ARTIFACT:VERSION) with all they need in ``lib``; ``files``, each with :TYPE and
    perhaps :CLASSIFIER after it, in ``files``, without versions in their names. Raises ``ServerMissing``."""
    folder = cache_folder(name)
    done = folder / "complete"
    wanted = "\n".join([*artifacts, *files])
    with exclusive(folder / "lock"):
        if not done.exists() or done.read_text() != wanted:
            print(f"fetching {name} from Maven Central, once")
            dependencies = "".join(_DEPENDENCY.format(*each.split(":")) for each in artifacts)
            shutil.rmtree(folder / "lib", ignore_errors=True)
            (folder / "pom.xml").write_text(_POM.format(name, dependencies))
            _maven(folder, "copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=lib")
            for each in files:
                _maven(folder, "copy", f"-Dartifact={each}", "-Dmdep.stripVersion=true", "-DoutputDirectory=files")
            done.write_text(wanted)
    return folder


def _maven(folder: Path, goal: str, *options: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ServerMissing("no mvn here: apt-get install maven")
    command = [maven, "-q", "-B", "-ntp", f"{_PLUGIN}:{goal}", *options]
    got = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if got.returncode:
        raise ServerMissing(f"mvn {goal} failed; Maven Central must be reachable: {got.stdout[-500:]}")


def compiled(sources: Sequence[Path], class_path: str, target: Path) -> Path:
    """``target``, with the classes of ``sources`` in it. Raises ``ServerMissing`` where there is no compiler, and of errors."""
    compiler = Path(java_command()).resolve().with_name("javac")
    if not compiler.exists():
        raise ServerMissing("no javac here: apt-get install openjdk-17-jdk-headless")
    target.mkdir(parents=True, exist_ok=True)
    classes = os.pathsep.join((class_path, str(target)))
    command = [str(compiler), "-nowarn", "-d", str(target), "-cp", classes, *map(str, sources)]
    got = subprocess.run(command, capture_output=True, text=True, check=False)
    if got.returncode:
        raise ServerMissing(f"javac failed: {got.stderr[-2000:]}")
    return target
