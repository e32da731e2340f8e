# Sourced by scripts/test, scripts/demo and scripts/bench-agentdojo: finds an interpreter, makes the virtual environment, installs the package.
#
# Needs Python 3.11 or newer and git, nothing else. pip follows this machine's own configuration (its files, PIP_* and
# certificate variables). Sets ROOT (the checkout) and VENV; everything written goes to VENV or to CACHE, so a
# checkout that cannot be written to will do.

ROOT=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*" >&2; }

# The real binary, not a version manager's shim: a shim fails in an empty environment and inside a sandbox.
find_python() {
  local name found
  for name in ${SAGGAR_PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3 /usr/bin/python3.11 /usr/bin/python3; do
    found=$("$name" -I -c 'import os, sys
if sys.version_info < (3, 11): sys.exit(1)
print(os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable))' 2>/dev/null) || continue
    [ -x "$found" ] && { printf '%s\n' "$found"; return; }
  done
  say "scripts: no Python 3.11 or newer found (looked for python3.11 to python3.14 and python3; SAGGAR_PYTHON overrides)"
  return 1
}

writable_directory() {
  local candidate
  for candidate in "$@"; do
    [ -n "$candidate" ] && mkdir -p -- "$candidate" 2>/dev/null && [ -w "$candidate" ] && { printf '%s\n' "$candidate"; return; }
  done
  mktemp -d "${TMPDIR:-/tmp}/saggar-XXXXXX"
}

make_venv() {
  local python=$1
  "$python" -m venv "$VENV" 2>/dev/null && return
  rm -rf -- "$VENV"
  # Debian keeps ensurepip in a package of its own; the system's pip can fill a bare environment as well
  if "$python" -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --without-pip "$VENV" && "$python" -m pip --python "$VENV/bin/python" install --quiet pip && return
  fi
  say "scripts: \`$python -m venv\` fails; on Debian and Ubuntu: apt-get install python3-venv"
  return 1
}

# Prepares VENV and CACHE with the package and the extras named in $1; quick when nothing changed.
prepare() {
  local extras=$1 python key home=${SAGGAR_VENV:-} kind=
  # one environment for tests and demo; other extras never replace its packages
  [ "$extras" = dev ] || kind=-$extras
  python=$(find_python) || return 1
  if [ -z "$home" ]; then
    if [ -w "$ROOT" ]; then home=$ROOT/.venv$kind; else
      key=$(printf '%s' "$ROOT" | git hash-object --stdin | cut -c1-12)
      home=$(writable_directory "${XDG_CACHE_HOME:-${HOME:-}/.cache}/saggar/venv-$key$kind") || return 1
    fi
  fi
  VENV=$home
  local stamp
  stamp=$("$python" -VV; printf '%s\n' "$python" "$extras" "$ROOT"; git hash-object -- "$ROOT/pyproject.toml")
  if [ "$(cat "$VENV/.stamp" 2>/dev/null)" != "$stamp" ] || ! "$VENV/bin/python" -c 'import saggar' 2>/dev/null; then
    say "scripts: installing into $VENV"
    rm -rf -- "$VENV"
    make_venv "$python" || return 1
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$ROOT[$extras]" || return 1
    printf '%s' "$stamp" >"$VENV/.stamp"
  fi
  CACHE=$VENV/.cache
  mkdir -p "$CACHE"
  export PYTHONPYCACHEPREFIX=$CACHE/pycache
}
