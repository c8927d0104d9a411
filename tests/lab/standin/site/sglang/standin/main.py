"""The main process: start the tree, serve HTTP, end as SGLang ends."""

import asyncio
import os
import signal
import sys
import traceback

from sglang.srt.server_args import prepare_server_args
from sglang.standin import faults, http, log, process, tree
from sglang.standin.engine import Engine
from sglang.standin.routes import Routes
from sglang.version import __version__

WARM_UP_TOKENS = 8


def main(argv):
    """Run the server until it is stopped."""
    settings, rest = faults.extract(argv, os.environ)
    args = prepare_server_args(rest)
    flags = ", ".join("%s=%r" % item for item in sorted(vars(args).items()))
    log.info("server_args=ServerArgs(%s)" % flags)
    if os.path.isabs(args.model_path) and not os.path.isdir(args.model_path):
        raise OSError("%s does not exist or is not a folder" % args.model_path)
    if settings.fail_at == "args" and settings.exit_at_start >= 0:
        sys.exit(settings.exit_at_start)
    if settings.leave_shm:
        with open("/dev/shm/sgl_shm_standin_%d_0" % os.getpid(), "wb") as handle:
            handle.write(bytes(4096))
    signal.signal(signal.SIGQUIT, _child_failed_at_start)
    family = tree.start(args, settings)
    try:
        tree.wait_until_ready(family)
    except RuntimeError:
        log.raw(traceback.format_exc())
        _end_children()
        sys.exit(1)
    asyncio.run(Server(args, settings, family).run())


class Server:
    """What runs once the schedulers are ready."""

    def __init__(self, args, settings, family):
        self.args = args
        self.settings = settings
        self.family = family
        self.engine = Engine(args, family)
        self.routes = Routes(args, settings, self.engine)
        self.ended = None
        self.exit_code = 0
        self.draining = None

    async def run(self):
        """Serve until a signal, a crash or an ordered end."""
        loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()  # made here: before Python 3.10 it belongs to one loop
        if not self.settings.ignore_term:
            loop.add_signal_handler(signal.SIGTERM, self._terminate)
        else:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        loop.add_signal_handler(signal.SIGQUIT, self._child_failed)
        loop.add_signal_handler(signal.SIGINT, self.ended.set)
        await self.engine.open()
        log.info("INFO:     Started server process [%d]" % os.getpid())
        log.info("INFO:     Waiting for application startup.")
        log.info("INFO:     Application startup complete.")
        if not await self._listen():
            _end_children()
            os._exit(1)
        tasks = [asyncio.ensure_future(self._warm_up())]
        if not self.settings.health_lies and has_watchdog():
            tasks.append(asyncio.ensure_future(self._watch_children()))
        await self.ended.wait()
        log.info("INFO:     Shutting down")
        _end_children()
        os._exit(self.exit_code)

    async def _listen(self):
        host, port = self.args.host, self.args.port
        try:
            await asyncio.start_server(self._client, host, port, limit=1 << 20, backlog=2048)
        except OSError as error:
            log.info(
                "ERROR:    [Errno %d] error while attempting to bind on address (%r, %d): address "
                "already in use" % (error.errno or 98, host, port)
            )
            return False
        log.info("INFO:     Uvicorn running on http://%s:%d (Press CTRL+C to quit)" % (host, port))
        return True

    async def _client(self, reader, writer):
        await http.Connection(reader, writer, self.routes.dispatch).serve()

    async def _warm_up(self):
        if self.settings.never_ready == "warmup":
            return
        log.access('127.0.0.1:56804 - "GET /model_info HTTP/1.1" 200 OK')
        answer = self.engine.submit([10, 11, 12, 13, 14, 15], WARM_UP_TOKENS)
        while not answer.done:
            await answer.news.get()
        log.access('127.0.0.1:56808 - "POST /generate HTTP/1.1" 200 OK')
        self.routes.ready = True
        log.info("The server is fired up and ready to roll!")
        if self.settings.kill_after_s >= 0:
            await asyncio.sleep(self.settings.kill_after_s)
            self.engine.kill_scheduler()
        if self.settings.exit_after_s >= 0:
            await asyncio.sleep(self.settings.exit_after_s)
            self.ended.set()

    async def _watch_children(self):
        while True:
            await asyncio.sleep(self.settings.watchdog_s)
            found = tree.died(self.family)
            if found:
                log.info(
                    "Subprocess %s (pid=%d) crashed with exit code %d. Triggering SIGQUIT for "
                    "cleanup..." % found
                )
                os.kill(os.getpid(), signal.SIGQUIT)
                return

    def _child_failed(self):
        log.info("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        if not self.settings.health_lies:
            process.kill_tree()

    def _terminate(self):
        log.info("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        if not self.routes.leaving:
            self.routes.leaving = True
            self.draining = asyncio.ensure_future(self._drain())

    async def _drain(self):
        """Look every few seconds whether the last request has ended, then end by SIGKILL."""
        while True:
            await asyncio.sleep(self.settings.term_poll_s)
            left = list(self.engine.answers)
            log.info(
                "Gracefully exiting... Remaining number of requests %d. Remaining requests "
                "remaining_rids=%r." % (len(left), left)
            )
            if not left:
                process.kill_tree()


def has_watchdog():
    """Return whether this version notices a killed child; before 0.5.12 it serves on without it."""
    return [int(number) for number in __version__.split(".")[:3]] >= [0, 5, 12]


def _child_failed_at_start(number, frame):
    log.info("Received sigquit from a child process. It usually means the child failed.")
    process.kill_tree()


def _end_children():
    for pid in process.children(os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
