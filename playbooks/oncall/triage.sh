#!/bin/sh
# On call: keep everything that a colleague will ask for, in one folder. It changes nothing.
#
#   triage.sh SERVER [FOLDER]
#
# Each command is tried whatever the others said; a missing file means that it had nothing to say.
set -u
if [ -z "${1:-}" ]; then
    echo "usage: ${0##*/} SERVER [FOLDER]" >&2
    exit 2
fi
server=$1
folder=${2:-triage-$server-$(date -u +%Y%m%d-%H%M%S)}
mkdir -p "$folder" || exit 1

keep() { # FILE COMMAND...
  file=$1
  shift
  "$@" >"$folder/$file" 2>"$folder/$file.said"
  echo "$? $*" >>"$folder/exit-codes"
}

keep status.txt opsctl status "$server"
keep status.json opsctl status "$server" --json
keep gpu.json opsctl gpu status "$server" --json
keep evidence.json opsctl run evidence "$server" --reason "triage" --json
keep server.log opsctl logs "$server" -n 2000
keep diagnosis.txt opsctl diagnose "$folder/server.log"
keep history.json opsctl history "$server" -n 20 --json
find "$folder" -size 0 -delete

cat "$folder/diagnosis.txt" 2>/dev/null
echo "kept in $folder; nothing was changed. Next: opsctl restart $server --dry-run" >&2
