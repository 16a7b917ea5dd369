#!/usr/bin/env bash
# Installs the servers that some tests talk to, as far as Debian has them: scripts/servers.sh
#
# Promises: installs only, starts nothing (the tests do, on 127.0.0.1); says what it downloads before it does; harmless where
# everything is there already. Where it cannot install anything, the tests that need the servers are skipped and the last
# line of the run says which guarantees were not tested; with CHUNKSTORE_REQUIRE they fail instead.
set -euo pipefail

say() { printf 'servers: %s\n' "$*" >&2; }

# Ceph's S3 gateway with one monitor and one object store daemon: about 75 MB to download, 290 MB on disk.
packages=(radosgw ceph-mon ceph-osd ceph-common)

missing=0
for program in radosgw ceph-mon ceph-osd ceph radosgw-admin monmaptool; do
    command -v "$program" >/dev/null 2>&1 || missing=1
done
[ "$missing" -eq 0 ] && exit 0

give_up() {
    say "$1; S3 is then tested against moto only. To have it: sudo apt-get install --no-install-recommends ${packages[*]}"
    exit 0
}

command -v apt-get >/dev/null 2>&1 || give_up "no apt-get here"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null || give_up "no right to install packages"
    as_root=(sudo -n)
fi
say "installing Ceph's S3 gateway for the tests with apt-get (once, about 75 MB): ${packages[*]}"
# A container without systemd must not try to start anything.
install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}")
"${as_root[@]}" "${install[@]}" >/dev/null 2>&1 || {
    "${as_root[@]}" apt-get update -qq >&2 && "${as_root[@]}" "${install[@]}" >&2
} || give_up "apt-get could not install it"
# The packages bring units for clusters; the tests start daemons of their own.
if command -v systemctl >/dev/null 2>&1 && systemctl is-system-running >/dev/null 2>&1; then
    "${as_root[@]}" systemctl disable --now ceph.target >/dev/null 2>&1 || true
fi
