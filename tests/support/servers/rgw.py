"""A real S3 server: Ceph's RADOS gateway from Debian's packages, with one monitor and one object store daemon behind it.

``memstore`` keeps everything in memory and starts in two seconds. ``bluestore`` writes to a file through Ceph's own
write-ahead log: what it has acknowledged survives ``kill`` and ``restart``. No cephx, loopback only, nothing outside the
folder given. Old enough (Ceph 16) to have no flexible checksums and no conditional CompleteMultipartUpload: exactly what
users of older clusters have.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import urllib.request
import uuid
from pathlib import Path
from typing import Literal

from tests.support.servers.base import ServerMissing, ServerProcess, free_ports, wait_until
from tests.support.servers.s3server import CREDENTIALS, S3Server

__all__ = ["PACKAGES", "Rgw"]

PACKAGES = ("radosgw", "ceph-mon", "ceph-osd", "ceph-common")
Store = Literal["memstore", "bluestore"]

_CONFIG = """\
[global]
fsid = {fsid}
mon_host = [v2:127.0.0.1:{mon}/0,v1:127.0.0.1:{mon_v1}/0]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_ipv6 = false
ms_bind_port_min = 32000
ms_bind_port_max = 32700
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
# The gateway insists on encrypted monitors by default, which cannot work without cephx.
ms_mon_client_mode = crc
ms_client_mode = crc
ms_cluster_mode = crc
ms_service_mode = crc
ms_mon_cluster_mode = crc
ms_mon_service_mode = crc
run_dir = {folder}/run
admin_socket = {folder}/run/$name.asok
log_file = {folder}/log/$name.log
pid_file = {folder}/run/$name.pid
crash_dir = {folder}/log
keyring = {folder}/keyring
# A second for every change of the cluster's map is most of a start otherwise.
paxos_propose_interval = 0.05
paxos_min_wait = 0.01
debug_osd = 1
debug_rocksdb = 0
debug_bluestore = 0
debug_bluefs = 0
debug_rgw = 0
osd_class_update_on_start = false
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_max_pg_per_osd = 2000
mon_data_avail_warn = 1
mon_data_avail_crit = 1
[mon.a]
mon_data = {folder}/mon
mon_initial_members = a
[osd.0]
osd_data = {folder}/osd
osd_objectstore = {store}
memstore_device_bytes = {size}
bluestore_block_size = {size}
osd_memory_target = 1073741824
[client.rgw.a]
rgw_data = {folder}/rgw
# Without tcp_nodelay every small answer waits 40 ms for an acknowledgement.
rgw_frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw_enable_apis = s3, admin
rgw_enable_usage_log = false
rgw_run_sync_thread = false
rgw_dynamic_resharding = false
rgw_thread_pool_size = 64
"""


def _run(*command: str, timeout_s: float = 180) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise ServerMissing(f"{command[0]} failed with {done.returncode}: {(done.stderr or done.stdout)[-500:]}")


class Rgw(S3Server):
    """Started by ``Rgw()``. Raises ``ServerMissing`` without the packages, or where it does not start."""

    def __init__(self, store: Store = "memstore", *, size_bytes: int = 16 << 30, parent: Path | None = None) -> None:
        for program in ("radosgw", "ceph-mon", "ceph-osd", "ceph", "monmaptool", "radosgw-admin"):
            if shutil.which(program) is None:
                raise ServerMissing(f"no {program} here: apt-get install --no-install-recommends {' '.join(PACKAGES)}")
        port, mon, mon_v1 = free_ports(3)
        super().__init__(port)
        self.store = store
        self.folder = Path(tempfile.mkdtemp(prefix="chunkstore-rgw-", dir=parent))
        self._processes: dict[str, ServerProcess] = {}
        try:
            self._prepare(mon, mon_v1, size_bytes)
            self._start_gateway()
            self._make_user()
        except BaseException:
            self.stop()
            raise

    @property
    def _conf(self) -> str:
        return str(self.folder / "ceph.conf")

    def _prepare(self, mon: int, mon_v1: int, size_bytes: int) -> None:
        for name in ("mon", "osd", "rgw", "run", "log"):
            (self.folder / name).mkdir()
        (self.folder / "keyring").touch()
        fsid = str(uuid.uuid4())
        (self.folder / "ceph.conf").write_text(
            _CONFIG.format(
                fsid=fsid, mon=mon, mon_v1=mon_v1, folder=self.folder, store=self.store, size=size_bytes, port=self.port
            )
        )
        monmap = str(self.folder / "monmap")
        address = f"[v2:127.0.0.1:{mon},v1:127.0.0.1:{mon_v1}]"
        _run("monmaptool", "--create", "--clobber", "--fsid", fsid, "--addv", "a", address, monmap)
        _run("ceph-mon", "-c", self._conf, "-i", "a", "--mkfs", "--monmap", monmap)
        self._start("mon", "ceph-mon", "-c", self._conf, "-i", "a", "-f")
        osd = str(uuid.uuid4())
        _run("ceph", "-c", self._conf, "--connect-timeout", "30", "osd", "new", osd)
        _run("ceph-osd", "-c", self._conf, "-i", "0", "--mkfs", "--osd-uuid", osd)
        self._start_osd()

    def _start(self, name: str, *command: str) -> None:
        self._processes[name] = ServerProcess(command, log=self.folder / "log" / f"{name}.out")

    def _start_osd(self) -> None:
        log = self.folder / "log" / "osd.0.log"
        seen = log.stat().st_size if log.exists() else 0
        self._start("osd", "ceph-osd", "-c", self._conf, "-i", "0", "-f")

        def active() -> bool:
            with open(log, "rb") as file:
                file.seek(seen)
                return b"booting -> active" in file.read()

        # A gateway that finds no active store daemon waits ten seconds before it looks again.
        self._processes["osd"].wait_ready(active, deadline_s=180, what="ceph-osd")

    def _start_gateway(self) -> None:
        self._start("rgw", "radosgw", "-c", self._conf, "-n", "client.rgw.a", "-f")
        self._processes["rgw"].wait_ready(self._answers, deadline_s=180, what="radosgw")

    def _answers(self) -> bool:
        with urllib.request.urlopen(self.url, timeout=20) as answer:
            return bool(answer.status == 200)

    def _make_user(self) -> None:
        key, secret = CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
        _run(
            *("radosgw-admin", "-c", self._conf, "-n", "client.rgw.a", "user", "create", "--uid=test"),
            *("--display-name=test", f"--access-key={key}", f"--secret-key={secret}", "--max-buckets=0"),
        )

    # Misfortune

    def kill(self, *names: str) -> None:
        """kill -9 of the named daemons ("rgw", "osd", "mon"), all of them if none is named; returns when they are gone."""
        for name in names or ("rgw", "osd", "mon"):
            self._processes[name].kill()

    def restart(self) -> None:
        """Start what was killed, and wait until the gateway answers. Only ``bluestore`` has kept anything."""
        if not self._processes["mon"].is_running():
            self._start("mon", "ceph-mon", "-c", self._conf, "-i", "a", "-f")
        if not self._processes["osd"].is_running():
            self._start_osd()
        if not self._processes["rgw"].is_running():
            self._start_gateway()
        wait_until(self._serves, deadline_s=180, what="an answer of the restarted gateway")

    def _serves(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self.client.list_buckets()
        except (BotoCoreError, ClientError):
            return False
        return True

    def stop(self) -> None:
        super().stop()
        for name in ("rgw", "osd", "mon"):
            if name in self._processes:
                self._processes[name].kill()
        shutil.rmtree(self.folder, ignore_errors=True)
