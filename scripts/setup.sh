#!/usr/bin/env bash
# Makes the virtual environment that the make targets use: scripts/setup.sh VENV [EXTRA]
#
# Promises: needs nothing but bash and, where no suitable Python is there, apt-get with root rights; says what it
# downloads before it does; when something cannot be had, says exactly what to do. Running it again is harmless.
set -euo pipefail

venv=$1
extra=${2:-}

say() { printf 'set-up: %s\n' "$*" >&2; }

stop() {
    say "cannot go on: $1"
    shift
    for line in "$@"; do printf '        %s\n' "$line" >&2; done
    exit 1
}

is_suitable() { command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        is_suitable "$PYTHON" || stop "PYTHON=$PYTHON is not a Python of version 3.11 or newer"
        printf '%s' "$PYTHON"
        return
    fi
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if is_suitable "$candidate" && has_venv "$candidate"; then
            printf '%s' "$candidate"
            return
        fi
    done
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if is_suitable "$candidate"; then
            printf '%s' "$candidate"
            return
        fi
    done
}

# Runs a command with root rights; fails where there are none to be had without a question.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else command -v sudo >/dev/null 2>&1 && sudo -n "$@"; fi
}

# Installs system packages; fails quietly where that is impossible (the caller knows what to tell the user).
apt_install() {
    local as_root=()
    command -v apt-get >/dev/null 2>&1 || return 1
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n)
    fi
    say "installing $* with apt-get (once)"
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@")
    "${as_root[@]}" "${install[@]}" >&2 || { "${as_root[@]}" apt-get update -qq >&2 && "${as_root[@]}" "${install[@]}" >&2; }
}

python=$(find_python)
if [ -z "$python" ]; then
    apt_install python3 python3-venv || true
    python=$(find_python)
    [ -n "$python" ] || stop "no Python of version 3.11 or newer was found" \
        "Debian 12 or newer, Ubuntu 24.04 or newer: sudo apt-get install python3 python3-venv" \
        "elsewhere: install one from python.org, then run: make PYTHON=/path/to/python3 ..."
fi

if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    if ! has_venv "$python"; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        apt_install "python$version-venv" || apt_install python3-venv || true
        has_venv "$python" || stop "$python cannot make virtual environments (its module ensurepip is missing)" \
            "run: sudo apt-get install python$version-venv" \
            "or name another Python: make PYTHON=/path/to/python3 ..."
    fi
    say "making the virtual environment $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
fi

say "installing the project${extra:+ with its extra \"$extra\"} into $venv (downloads packages the first time; Spark is large)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e ".${extra:+[$extra]}" || stop \
    "pip could not install the packages named in pyproject.toml" \
    "its own message stands above; without network, point pip at a mirror or a folder of wheels:" \
    "PIP_INDEX_URL=https://... make ...    or    PIP_FIND_LINKS=/path/to/wheels PIP_NO_INDEX=1 make ..."

# Spark and the tests' own HDFS need Java 17 or newer. Nothing else does, so its absence stops nothing.
case ",$extra," in
*,spark,* | *,dev,*)
    if ! command -v java >/dev/null 2>&1 && [ -z "${JAVA_HOME:-}" ]; then
        apt_install openjdk-17-jre-headless || say "no Java here, so what needs Spark, or tests HDFS, is left out; to have it:" \
            "sudo apt-get install openjdk-17-jre-headless"
    fi
    ;;
esac

# The tests' own HDFS takes a few jars out of Debian's packages (nothing of them is installed); apt-get has to know them.
case ",$extra," in
*,dev,*)
    if command -v apt-get >/dev/null 2>&1 && ! apt-cache show libjetty9-java >/dev/null 2>&1; then
        say "asking apt-get for its lists of packages"
        as_root apt-get update -qq >&2 || say "they cannot be had, so HDFS may not be tested: sudo apt-get update"
    fi
    ;;
esac
