"""Log lines in SGLang's form: ``[2026-11-29 13:44:01 TP0] text``."""

import os
import time

prefix = ""


def info(text):
    """Write one log line, or several, whole."""
    _write(2, "[%s%s] %s\n" % (time.strftime("%Y-%m-%d %H:%M:%S"), prefix, text))


def access(text):
    """Write a line of the access log, which goes to stdout."""
    _write(1, "[%s] INFO:     %s\n" % (time.strftime("%Y-%m-%d %H:%M:%S"), text))


def raw(text):
    """Write text that carries no time stamp, such as a traceback."""
    _write(2, text + "\n")


def _write(handle, text):
    try:
        os.write(handle, text.encode("utf-8", "replace"))
    except OSError:
        pass  # a full disk or a closed pipe does not stop a server's logging, nor the server
