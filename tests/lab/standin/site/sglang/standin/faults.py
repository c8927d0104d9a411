"""What a test orders of the stand-in: timings, and faults.

Each setting is ``--lab-NAME VALUE`` on the command line (a bare ``--lab-NAME`` is 1), or
``NAME=VALUE`` in the comma-separated environment variable LAB_FAULTS.
"""

import sys

# name -> (type, default, what it does)
SETTINGS = {
    # timings
    "startup-s": (float, 0.3, "seconds between start and ready, spread over the stages"),
    "ttft-ms": (float, 20.0, "from a request's start to its first token"),
    "itl-ms": (float, 5.0, "between two steps of a request"),
    "accept": (float, 3.0, "tokens per step under speculation, on average"),
    "term-poll-s": (float, 0.1, "how often SIGTERM is looked at (SGLang: 5)"),
    "watchdog-s": (float, 0.2, "how often the children are looked at (SGLang: 1)"),
    "mem-mib": (int, -1, "lab GPU memory per rank; -1: what mem-fraction-static gives"),
    # start-up
    "fail-at": (
        str,
        "weights",
        "where exit-at-start and signal-at-start strike: args, weights, graphs",
    ),
    "exit-at-start": (int, -1, "end with this exit code while starting"),
    "signal-at-start": (str, "", "a scheduler dies of this signal while starting, such as SEGV"),
    "never-ready": (str, "", "stop making progress at weights, graphs or warmup"),
    "exit-after-s": (float, -1.0, "the main process exits 0 this long after it was ready"),
    # under load: "above" counts requests in flight, 0 is from the first on
    "crash-above": (
        int,
        -1,
        "a decode batch of more requests raises the shape error of the incident",
    ),
    "crash-text": (str, "graph", "its wording: graph, plain (no CUDA graphs) or none"),
    "leak-above": (int, -1, "a batch of more requests loses tokens; told when it becomes idle"),
    "leak-text": (
        str,
        "leak",
        "how: leak (the self-check raises) or assert (a kernel's, and nobody ends)",
    ),
    "kill-above": (int, -1, "with more in flight a scheduler kills itself"),
    "kill-after-s": (float, -1.0, "a scheduler kills itself this long after it was ready"),
    "kill-signal": (str, "KILL", "by this signal"),
    "kill-rank": (int, 0, "the scheduler of this rank"),
    "hang-above": (int, -1, "with more running no token comes any more; health stays 200"),
    "hang-after-tokens": (int, -1, "the same, after this many tokens in all"),
    "mush": (str, "", "wrong text: repeat, replacement, empty or wrong (plausible, other tokens)"),
    "mush-above": (int, 0, "only with more running"),
    "error-above": (int, -1, "with more in flight: status 200 and an error object inside"),
    "http-error": (int, -1, "answer requests with this status, such as 500 or 503"),
    "http-error-above": (int, 0, "only with more in flight"),
    "cut-after-tokens": (int, -1, "close a stream's connection after this many tokens"),
    "cut-above": (int, 0, "only with more in flight"),
    "no-done": (int, 0, "end streams cleanly, without a finish reason and without [DONE]"),
    # processes
    "ignore-term": (int, 0, "SIGTERM does nothing"),
    "reparent": (int, 0, "schedulers are double-forked, so their parent is pid 1"),
    "orphans": (int, 0, "children live on when the main process dies"),
    "health-lies": (int, 0, "no watchdog, and health is 200 whatever died"),
    "zombie": (int, 0, "a child ends and is never reaped"),
    "leave-shm": (int, 0, "leave a segment in /dev/shm named after the main process"),
}


class Settings:
    """The settings as attributes: ``crash-above`` is ``crash_above``."""

    def __init__(self):
        for name, (_, default, _) in SETTINGS.items():
            setattr(self, name.replace("-", "_"), default)

    def set(self, name, value):
        """Set one by its name; an unknown name or a wrong value ends the program with exit 2."""
        if name not in SETTINGS:
            _refuse("unknown setting %r; known: %s" % (name, ", ".join(SETTINGS)))
        kind = SETTINGS[name][0]
        try:
            setattr(self, name.replace("-", "_"), kind(value))
        except ValueError:
            _refuse("setting %s wants %s, not %r" % (name, kind.__name__, value))


def extract(argv, environ):
    """Return the settings, and the command line without them."""
    settings = Settings()
    for item in filter(None, environ.get("LAB_FAULTS", "").split(",")):
        name, _, value = item.strip().partition("=")
        settings.set(name, value or "1")
    rest = []
    queue = list(argv)
    while queue:
        item = queue.pop(0)
        if not item.startswith("--lab-"):
            rest.append(item)
            continue
        name, equals, value = item[len("--lab-") :].partition("=")
        if not equals:
            value = queue.pop(0) if queue and not queue[0].startswith("--") else "1"
        settings.set(name, value)
    return settings, rest


def _refuse(text):
    sys.stderr.write("stand-in: %s\n" % text)
    sys.exit(2)
