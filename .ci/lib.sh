# Shared by the scripts of this folder: where we are, one run at a time, and the virtual environment.
# Sourced, never run.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD

say() { printf '\n== %s\n' "$*" >&2; }

# One demo or test run per machine (the lab's containers and addresses exist once). The lock is the
# kernel's, so a run that was killed leaves nothing behind. What may outlive this script gets descriptor 9 closed.
one_at_a_time() {
  is_guarded && return 0
  local lock
  if [ "$(id -u)" = 0 ]; then lock=/run/lock/opsctl-make; else lock="${TMPDIR:-/tmp}/opsctl-make-$(id -u)"; fi
  mkdir -p "$(dirname "$lock")"
  exec 9>>"$lock"
  if ! flock -w 3 9; then # a run that was killed needs a moment to end what it had started
    local who how="or stop it first: kill $(holders "$lock")"
    who=$(cat "$lock.who" 2>/dev/null || echo 'another run')
    case $who in *" in $ROOT)") ;; *) how="it is another checkout's, and the machine has room for one" ;; esac
    echo "make $1: refused, '$who' is still at work; wait for it, $how" >&2
    exit 1
  fi
  echo "make $1 (pid $$, since $(date '+%H:%M:%S'), in $ROOT)" >"$lock.who"
}

# The processes that have a file open as descriptor 9, but for this shell and its own.
holders() {
  local link pid
  for link in /proc/[0-9]*/fd/9; do
    pid=${link#/proc/} pid=${pid%%/*}
    if [ "$link" -ef "$1" ] && [ "$pid" != $$ ] && [ "$pid" != "$BASHPID" ]; then printf '%s ' "$pid"; fi
  done
}

# From here on the script runs under guard.py: whatever of the run is killed, nothing of it stays.
guarded() {
  is_guarded && return 0
  OPSCTL_MAKE_PPID=$PPID exec python .ci/guard.py bash "$0" "$@"
}

is_guarded() {
  local head
  [ -n "${MAKE_GUARDED_BY:-}" ] && read -r _ _ _ head _ <"/proc/$PPID/stat" && [ "${MAKE_GUARDED_BY%%-*}" = "$head" ]
}

is_root() { [ "$(id -u)" = 0 ]; }

# Debian packages: installed when root, named when not.
need_packages() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} = 0 ] && return 0
  if ! is_root; then
    echo "missing Debian packages, and only root can install them: ${missing[*]}" >&2
    return 1
  fi
  say "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  dpkg --configure -a >/dev/null 2>&1 9>&- || true # an installation that was cut
  local apt=(apt-get -q -o DPkg::Lock::Timeout=300) try
  for try in 1 2 3 4 5; do
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null 2>&1 9>&- && return 0
    "${apt[@]}" update >/dev/null 9>&- || sleep 5 # the apt-get of a run that was killed may be at work still
  done
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null 9>&-
}

# uv keeps nothing in /tmp, and as root what it fetched where the lab keeps such things.
uv_leaves_nothing() {
  mkdir -p .venv/tmp
  export TMPDIR=$ROOT/.venv/tmp
  if is_root; then export UV_CACHE_DIR="${UV_CACHE_DIR:-${OPSCTL_LAB_CACHE:-/var/cache/opsctl-lab}/sglang/uv}"; fi
}

python_for_venv() {
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null &&
      "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return 0
    fi
  done
  return 1
}

# .venv holds opsctl (editable) and its test tools; made anew only when pyproject.toml changed. Installed by
# uv, which takes seconds; by pip where uv is not to be had.
make_venv() {
  local python stamp
  if ! python=$(python_for_venv); then
    need_packages python3 python3-venv || {
      echo "needed: Python 3.11 or newer with venv (Debian 12: apt-get install python3-venv)" >&2
      exit 1
    }
    python=$(python_for_venv) || { echo "Python 3.11 or newer with venv was not found" >&2; exit 1; }
  fi
  stamp=$(sha256sum pyproject.toml | cut -c1-16)-$("$python" -c 'import sys; print(sys.version)' | sha256sum | cut -c1-8)
  if [ "$(cat .venv/.stamp 2>/dev/null)" != "$stamp" ]; then
    say "making the virtual environment .venv (half a minute)"
    rm -rf .venv
    "$python" -m venv .venv
    local pip=(.venv/bin/python -m pip install -q --disable-pip-version-check)
    if ! { "${pip[@]}" uv && (uv_leaves_nothing && eval "$(.venv/bin/python tests/lab/pip_config.py)" &&
      .venv/bin/uv pip install -q --python .venv/bin/python -e '.[test]'); }; then
      echo "uv could not install it; pip does, which takes longer" >&2
      "${pip[@]}" -e '.[test]'
    fi
    rm -rf .venv/tmp
    echo "$stamp" >.venv/.stamp
  fi
  export PATH="$ROOT/.venv/bin:$PATH" PYTHONDONTWRITEBYTECODE=
}
