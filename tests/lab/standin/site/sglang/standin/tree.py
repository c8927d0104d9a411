"""The processes of a server: schedulers, detokenizer, resource tracker, below the main one."""

import os
import select
import signal
import socket
import time
import traceback
from multiprocessing import resource_tracker

from sglang.standin import log, process, scheduler, tokens, wire
from sglang.standin.startup import Stages


class Tree:
    """What the main process knows of its children."""

    def __init__(self):
        self.names = {}  # pid -> the name in log lines
        self.to_scheduler = None
        self.from_detokenizer = None
        self.ready = []


def start(args, settings):
    """Start every process below this one; they get ready side by side."""
    resource_tracker.ensure_running()
    if settings.zombie:
        _leave_zombie()
    tree, main_pid = Tree(), os.getpid()
    to_scheduler, inbox = socket.socketpair()
    outbox, detokenizer_in = socket.socketpair()
    detokenizer_out, from_detokenizer = socket.socketpair()
    links = [socket.socketpair() for _ in range(1, args.tp_size)]
    every = [to_scheduler, inbox, outbox, detokenizer_in, detokenizer_out, from_detokenizer]
    every += [end for pair in links for end in pair]
    for rank in range(args.tp_size):
        mine = [inbox, outbox, *[near for near, _ in links]] if rank == 0 else [links[rank - 1][1]]
        ready, tell = socket.socketpair()

        def run(rank=rank, mine=mine, tell=tell):
            _run_scheduler(args, settings, rank, mine, tell, main_pid)

        title = "sglang::scheduler" + ("_TP%d" % rank if args.tp_size > 1 else "")
        pid = _spawn(title, run, [e for e in every if e not in mine] + [ready], settings)
        tell.close()
        tree.names[pid] = "scheduler_%d" % rank
        tree.ready.append((pid, rank, ready))
        every.append(ready)
    mine = [detokenizer_in, detokenizer_out]
    pid = _spawn(
        "sglang::detokenizer",
        lambda: _detokenize(detokenizer_in, detokenizer_out),
        [e for e in every if e not in mine],
        settings,
        stays=True,
    )
    tree.names[pid] = "detokenizer"
    for end in every:
        if end not in (to_scheduler, from_detokenizer) and end not in [r for _, _, r in tree.ready]:
            end.close()
    tree.to_scheduler, tree.from_detokenizer = to_scheduler, from_detokenizer
    return tree


def wait_until_ready(tree):
    """Wait for every rank; a rank that dies first is an error in SGLang's words."""
    for pid, rank, ready in tree.ready:
        select.select([ready], [], [])
        if not ready.recv(1):
            code = _exit_code(pid)
            raise RuntimeError(
                "Rank %d scheduler died during initialization (exit code: %s). If exit code is -9 "
                "(SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to "
                "check." % (rank, code)
            )
        ready.close()


def died(tree):
    """Return name, pid and exit code of a child that crashed, or None."""
    for pid, name in list(tree.names.items()):
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # reparented: not ours to wait for
            if not os.path.exists("/proc/%d" % pid):
                return name, pid, -9
            continue
        if done:
            del tree.names[pid]
            code = _code(status)
            if code != 0:
                return name, pid, code
    return None


def _run_scheduler(args, settings, rank, mine, tell, main_pid):
    if args.tp_size > 1:
        log.prefix = " TP%d" % rank
    stages = Stages(args, settings, rank)
    stages.run()
    tell.sendall(b"r")
    tell.close()
    if rank:
        scheduler.follow(mine[0], rank, main_pid)
    scheduler.Scheduler(args, settings, mine[0], mine[1], mine[2:], main_pid).run()


def _detokenize(source, sink):
    """Put the text beside the tokens, and pass everything on to the main process."""
    inbox = wire.Reader(source)
    while not inbox.closed:
        for message in inbox.receive():
            for output in message["outputs"]:
                output["text"] = tokens.decode(output["new"])
            wire.send(sink, message)
    while True:
        time.sleep(3600)


def _spawn(title, run, not_its, settings, stays=False):
    """Fork a child with its title; double-fork it where the test wants it under pid 1."""
    if settings.reparent and not stays:
        return _spawn_reparented(title, run, not_its)
    pid = os.fork()
    if pid:
        return pid
    if not settings.orphans:
        process.die_with_parent()
    return _become(title, run, not_its)


def _spawn_reparented(title, run, not_its):
    reader, writer = os.pipe()
    between = os.fork()
    if not between:
        pid = os.fork()
        if pid:
            os.write(writer, b"%d" % pid)
            os._exit(0)
        os.close(reader)
        os.close(writer)
        _become(title, run, not_its)
    os.close(writer)
    pid = int(os.read(reader, 32))
    os.close(reader)
    os.waitpid(between, 0)
    return pid


def _become(title, run, not_its):
    try:
        for end in not_its:
            end.close()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        process.set_title(title)
        run()
    except Exception:
        log.info("Scheduler hit an exception: " + traceback.format_exc())
    finally:
        os._exit(1)


def _leave_zombie():
    pid = os.fork()
    if not pid:
        process.set_title("sglang::zombie")
        os._exit(0)


def _exit_code(pid):
    try:
        return _code(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return "unknown"


def _code(status):
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
