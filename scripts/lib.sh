# Shared by the scripts beside it: a fresh virtual environment, made once and made again when it is stale, and what else
# several of them need. Sourced, not run.

TORCH="torch==2.13.0"

say() { printf '== %s\n' "$*"; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

# A path as the caller means it: the scripts work in the project's folder and keep in invoked_from where they were called.
from_caller() {
    case "$1" in
        /* | -) printf '%s' "$1" ;;
        *) printf '%s' "$invoked_from/$1" ;;
    esac
}

# apt_install WHY PACKAGE...: installs Debian packages, or says which command the user has to run.
apt_install() {
    local why="$1" as_root=()
    shift
    command -v apt-get >/dev/null || die "$why Install it with your system's package manager and run this again."
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || die "$why Run this, then try again:  sudo apt-get update && sudo apt-get install -y $*"
        as_root=(sudo -n)
    fi
    say "$why Installing $*"
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null \
        || die "apt-get could not install $*"
}

# Prints the first interpreter that runs and is new enough. Only running it tells: version managers leave dead names behind.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# Sets PYTHON_BIN to a Python >= 3.11 that can make virtual environments.
require_python() {
    if ! PYTHON_BIN="$(find_python)"; then
        [ -z "${PYTHON:-}" ] || die "PYTHON=$PYTHON is not a Python 3.11 or newer"
        apt_install "Python 3.11 or newer is needed." python3 python3-venv
        PYTHON_BIN="$(find_python)" || die "this system's python3 is older than 3.11; install a newer one and set PYTHON to it"
    fi
    if ! "$PYTHON_BIN" -c 'import venv, ensurepip' >/dev/null 2>&1; then
        local name
        name="$("$PYTHON_BIN" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
        apt_install "$PYTHON_BIN cannot make virtual environments." "$name"
        "$PYTHON_BIN" -c 'import venv, ensurepip' >/dev/null 2>&1 || die "$PYTHON_BIN still lacks the module ensurepip"
    fi
}

# hash_of FILE_OR_FOLDER...: one hash of all contents and names, caches left out.
hash_of() {
    find "$@" -type f -not -path '*/__pycache__/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-64
}

# make_environment FOLDER PACKAGE...: a virtual environment with these packages at the versions of constraints.txt.
# The stamp is written last, so that an interrupted run leaves nothing that the next one would take for good.
make_environment() {
    local folder="$1" stamp
    shift
    stamp="$("$PYTHON_BIN" -VV | tr '\n' ' ') $(hash_of constraints.txt scripts/lib.sh) $PWD $*"
    if [ -f "$folder/.stamp" ] && [ "$(cat "$folder/.stamp")" = "$stamp" ] && "$folder/bin/python" -c '' 2>/dev/null; then
        return
    fi
    say "making the virtual environment $folder with $("$PYTHON_BIN" -V) (a few minutes the first time)"
    rm -rf "$folder"
    "$PYTHON_BIN" -m venv "$folder"
    pip_install "$folder" "$TORCH" "$@"
    printf '%s' "$stamp" >"$folder/.stamp"
}

# pip_install FOLDER ARGUMENT...: always under the constraints, in the environments that builds run in as well.
pip_install() {
    local folder="$1"
    shift
    PIP_CONSTRAINT="$PWD/constraints.txt" PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONPATH='' \
        "$folder/bin/python" -m pip install -qq --no-input "$@" || die "pip could not install: $*"
}

# requirements EXTRA: what pyproject.toml lists for the package and for one extra, one a line.
requirements() {
    "$PYTHON_BIN" -c '
import sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
print("\n".join(project["dependencies"] + project["optional-dependencies"][sys.argv[1]]))' "$1"
}
