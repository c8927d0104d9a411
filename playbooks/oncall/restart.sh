#!/bin/sh
# On call: the server is down or wrong, and must be back, proven.
#
#   restart.sh SERVER "REASON" [opsctl options, such as --yes or --no-smoke]
#
# It changes nothing before the plan was shown and agreed to (or --yes was given). The exit code is opsctl's.
set -u
if [ $# -lt 2 ] || [ -z "$1" ] || [ -z "$2" ]; then
    echo "usage: ${0##*/} SERVER \"REASON\" [opsctl options, such as --yes or --no-smoke]" >&2
    exit 2
fi
server=$1 reason=$2
shift 2

opsctl config check || exit $?

opsctl restart "$server" --reason "$reason" "$@"
code=$?

case $code in
0) echo "proven: $server runs, and it answered" ;;
10 | 20 | 21) echo "nothing was stopped unless the lines above say so; correct what they name, then run this again" ;;
30 | 40 | 130) echo "it was cut; go on with: opsctl resume" ;;
50) echo "refused: somebody else is at it, or this is known to fail; read the reason above before --again" ;;
60) echo "the new server crashed or hung: opsctl logs $server; opsctl show last" ;;
70) echo "it runs and answers wrongly: opsctl show last" ;;
75) echo "it runs; the smoke could not measure it from here" ;;
*) echo "unexpected exit code $code: opsctl show last" ;;
esac >&2
exit $code
