"""A server made of processes that misbehave as asked: for tests of a stop. Standard library only.

--port N; --children N; --ignore-term; --double-fork (a worker whose parent is gone, in the session of the
server); --zombie (a child that ended and is never collected); --slow-term S (ends S seconds after TERM);
--late-child (TERM makes it fork one more worker).
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time


def worker(ignore_term: bool) -> None:
    if ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        time.sleep(60)


def fork_worker(ignore_term: bool) -> int:
    pid = os.fork()
    if pid == 0:
        worker(ignore_term)
    return pid


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--children", type=int, default=2)
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--double-fork", action="store_true")
    parser.add_argument("--zombie", action="store_true")
    parser.add_argument("--slow-term", type=float, default=0.0)
    parser.add_argument("--late-child", action="store_true")
    options = parser.parse_args()
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for _ in range(options.children):
        fork_worker(options.ignore_term)
    if options.double_fork and os.fork() == 0:
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "120"])
        os._exit(0)
    if options.zombie and os.fork() == 0:
        os._exit(3)

    def on_term(number: int, frame: object) -> None:
        if options.late_child:
            fork_worker(ignore_term=True)
        time.sleep(options.slow_term)
        os._exit(0)

    handler = signal.SIG_IGN if options.ignore_term else on_term
    signal.signal(signal.SIGTERM, handler)
    listening.bind(("127.0.0.1", options.port))
    listening.listen()
    while True:
        try:
            listening.accept()[0].close()
        except InterruptedError:
            continue


if __name__ == "__main__":
    sys.exit(main())
