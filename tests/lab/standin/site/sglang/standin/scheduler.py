"""A scheduler process: rank 0 decides and makes the tokens, the other ranks step with it."""

import collections
import faulthandler
import os
import select
import signal
import time

from sglang.standin import crash, log, tokens, wire

IDLE_S = 0.3  # longer than the gap between two requests of a client


class Request:
    """One request on its way."""

    def __init__(self, message):
        self.rid = message["rid"]
        self.token = message["last"]
        self.prompt = message["prompt"]
        self.limit = message["max_new"]
        self.stop_at = message["stop_at"]
        self.made = 0
        self.verified = 0
        self.owed = 0.0
        self.due = 0.0
        self.probe = message.get("probe", False)


class Scheduler:
    """Rank 0: takes requests from the main process, sends tokens to the detokenizer."""

    def __init__(self, args, settings, inbox, outbox, followers, main_pid):
        self.args = args
        self.settings = settings
        self.inbox = wire.Reader(inbox)
        self.outbox = outbox
        self.followers = followers
        self.main_pid = main_pid
        self.waiting = collections.deque()
        self.running = {}
        self.hung = False
        self.leaked = False
        self.made = 0
        self.steps = 0.0
        self.reported_at = time.monotonic()
        self.reported_made = 0

    def run(self):
        """Serve until killed."""
        while True:
            due = min((r.due for r in self.running.values()), default=None)
            timeout = None if due is None or self.hung else max(0.0, due - time.monotonic())
            idle = self.leaked and not self.hung and not self.running
            if idle:
                timeout = IDLE_S
            if self.inbox.closed:
                time.sleep(timeout if timeout is not None else 3600)
            elif select.select([self.inbox.sock], [], [], timeout)[0]:
                for message in self.inbox.receive():
                    self.handle(message)
            elif idle:
                self._become_idle()
            self.step(time.monotonic())

    def handle(self, message):
        """Take one message of the main process."""
        if message["op"] == "kill":
            self.kill()
            return
        if message["op"] == "abort":
            for rid in self._named(message):
                self.running.pop(rid, None)
                self.waiting = collections.deque(r for r in self.waiting if r.rid != rid)
                done = {
                    "type": "abort",
                    "message": "Aborted",
                    "status_code": None,
                    "err_type": None,
                }
                self._send([{"rid": rid, "new": [], "done": done, "verified": 0}])
            self._admit()
            return
        request = Request(message)
        if request.probe and self.hung:
            self._send([{"rid": request.rid, "new": [], "done": {"type": "length"}, "verified": 0}])
            return
        self.waiting.append(request)
        self._admit()

    def step(self, now):
        """Make the tokens that are due."""
        due = [r for r in self.running.values() if r.due <= now]
        if not due or self.hung:
            return
        self._strike()
        if self.hung:
            return
        self._together({"op": "step"})
        self.steps += len(due) / len(self.running)
        outputs = [self._advance(request, now) for request in due]
        for output in outputs:
            if output["done"]:
                del self.running[output["rid"]]
        self._send(outputs)
        self._admit()
        if self.steps >= (self.args.decode_log_interval or 40):
            self._report()

    def kill(self):
        """End the scheduler that the test chose."""
        if self.settings.kill_rank == 0:
            die(self.settings.kill_signal)
        order = {"op": "die", "rank": self.settings.kill_rank, "signal": self.settings.kill_signal}
        self._together(order)

    def _named(self, message):
        known = list(self.running) + [r.rid for r in self.waiting]
        return known if message.get("all") else [rid for rid in known if rid == message["rid"]]

    def _admit(self):
        new = []
        while self.waiting and len(self.running) < self.args.max_running_requests:
            request = self.waiting.popleft()
            request.due = time.monotonic() + (0 if request.probe else self.settings.ttft_ms / 1000)
            self.running[request.rid] = request
            new.append(request)
        if any(not request.probe for request in new):
            log.info(
                "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: 0, token usage: 0.00, "
                "#running-req: %d, #queue-req: %d, #pending-token: 0, cuda graph: False, "
                "input throughput (token/s): 0.00"
                % (
                    len(new),
                    sum(r.prompt for r in new),
                    len(self.running) - len(new),
                    len(self.waiting),
                )
            )

    def _advance(self, request, now):
        """Give a request the tokens of one step: one, or under speculation some."""
        count = 1
        if request.made and self.args.speculative_algorithm:
            request.owed += self.settings.accept
            count = max(1, int(request.owed))
            request.owed -= count
        if request.made:
            request.verified += 1
        count = min(count, request.limit - request.made)
        new = []
        for _ in range(count):
            request.token = tokens.following(request.token)
            new.append(self._spoil(request.token))
        request.made += count
        self.made += count
        request.due += self.settings.itl_ms / 1000
        if request.due < now - 1.0:  # frozen or starved: go on from here, do not catch up
            request.due = now
        done = None
        if request.made >= request.limit:
            done = {"type": "length", "length": request.limit}
            if request.stop_at:
                done = {"type": "stop", "matched": 2}
        return {"rid": request.rid, "new": new, "done": done, "verified": request.verified}

    def _spoil(self, token):
        if not self.settings.mush or len(self.running) <= self.settings.mush_above:
            return token
        if self.settings.mush == "wrong":
            return tokens.following(token + 1)
        return tokens.BROKEN_BY_NAME.get(self.settings.mush, 0)

    def _become_idle(self):
        """Tell of the loss, as SGLang's self-check does: only when nothing runs any more."""
        if self.settings.leak_text == "assert":
            os.write(2, (crash.ASSERT + "\n").encode())
            self.hung = True
            return
        self._together({"op": "crash", "text": crash.LEAK})
        crash.fail(crash.LEAK, self.main_pid)

    def _strike(self):
        """Let the ordered faults happen."""
        settings, busy = self.settings, len(self.running)
        if 0 <= settings.kill_above < busy:
            self.kill()
        if 0 <= settings.crash_above < busy and any(r.made for r in self.running.values()):
            text = crash.traceback(settings.crash_text, busy, draft_tokens(self.args))
            self._together({"op": "crash", "text": text})
            crash.fail(text, self.main_pid)
        self.leaked = self.leaked or 0 <= settings.leak_above < busy
        if 0 <= settings.hang_above < busy or 0 <= settings.hang_after_tokens <= self.made:
            self.hung = not all(r.probe for r in self.running.values())

    def _together(self, message):
        """Have every rank do its part; a frozen or dead one holds all of them up."""
        for follower in self.followers:
            wire.send(follower, message)
        for follower in self.followers:
            if not follower.recv(1):
                time.sleep(3600)

    def _send(self, outputs):
        stats = {"running": len(self.running), "waiting": len(self.waiting)}
        wire.send(self.outbox, {"outputs": outputs, "stats": stats})

    def _report(self):
        now = time.monotonic()
        speed = (self.made - self.reported_made) / max(0.001, now - self.reported_at)
        spec = ""
        if self.args.speculative_algorithm:
            rate = (self.settings.accept - 1) / max(1, draft_tokens(self.args) - 1)
            spec = "accept len: %.2f, accept rate: %.2f, " % (self.settings.accept, rate)
        log.info(
            "Decode batch, #running-req: %d, #token: %d, token usage: 0.00, %scuda graph: %s, "
            "gen throughput (token/s): %.2f, #queue-req: %d"
            % (
                len(self.running),
                sum(r.prompt + r.made for r in self.running.values()),
                spec,
                not self.args.disable_cuda_graph,
                speed,
                len(self.waiting),
            )
        )
        self.steps, self.reported_at, self.reported_made = 0.0, now, self.made


def draft_tokens(args):
    """Return how many rows one request has in a verify batch."""
    return args.speculative_num_draft_tokens or 1


def follow(sock, rank, main_pid):
    """Be a rank that only steps along."""
    inbox = wire.Reader(sock)
    while not inbox.closed:
        for message in inbox.receive():
            if message["op"] == "die" and message["rank"] == rank:
                die(message["signal"])
            if message["op"] == "crash":
                sock.sendall(b"k")
                crash.fail(message["text"], main_pid)
            sock.sendall(b"k")
    while True:
        time.sleep(3600)


def die(name):
    """End this process by a signal, as a native crash or the kernel's OOM killer would."""
    number = getattr(signal, "SIG" + name.upper().replace("SIG", "", 1))
    if number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL):
        faulthandler.enable()
    os.kill(os.getpid(), number)
    time.sleep(3600)
