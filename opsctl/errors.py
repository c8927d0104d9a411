"""Every error that opsctl reports: fields first, one sentence, one exit code, what to do next."""

from __future__ import annotations


class OpsctlError(Exception):
    """Base of the errors that end a command with one sentence and an exit code.

    Args:
        message: one sentence, lower case, without a final full stop.
        next_step: what the reader can do about it, or None when there is nothing to add.
        code: short stable name of the finding, for machines.
        subject: what it is about (a host, a server, a GPU UUID, a file), or None.
    """

    exit_code = 1
    code = "internal"

    def __init__(
        self,
        message: str,
        *,
        next_step: str | None = None,
        code: str | None = None,
        subject: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.subject = subject
        if code is not None:
            self.code = code


class UsageError(OpsctlError):
    """The command line asks for something that does not exist or does not fit together."""

    exit_code = 2
    code = "usage"


class ConfigError(OpsctlError):
    """The site file, a playbook, a patch or a template is wrong."""

    exit_code = 10
    code = "config"


class CheckFailed(OpsctlError):
    """opsctl looked, and what it saw is bad."""

    exit_code = 20
    code = "check-failed"


class CouldNotTell(OpsctlError):
    """opsctl could not find out; nothing is claimed either way."""

    exit_code = 21
    code = "could-not-tell"


class TransportError(OpsctlError):
    """A host could not be reached, or the way to it broke."""

    exit_code = 30
    code = "transport"


class AgentError(OpsctlError):
    """The agent could not start on the host, broke its protocol, or one of its operations failed."""

    exit_code = 40
    code = "agent"


class SafetyRefusal(OpsctlError):
    """opsctl refuses: a proof, a lock, a confirmation or a known failure stands in the way."""

    exit_code = 50
    code = "refused"


class ServerCrashed(OpsctlError):
    """The server crashed or hung."""

    exit_code = 60
    code = "server-crashed"


class SmokeFailed(OpsctlError):
    """The server answered, but not well enough."""

    exit_code = 70
    code = "smoke-failed"


class NotMeasured(OpsctlError):
    """The client or the environment was the limit, so nothing is claimed about the server."""

    exit_code = 75
    code = "not-measured"


class Interrupted(OpsctlError):
    """The operator stopped the command."""

    exit_code = 130
    code = "interrupted"
