"""The command line: finds the command, runs it, and is the only place that turns errors into text."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import TYPE_CHECKING, Any

import click

from opsctl import __version__
from opsctl.errors import Interrupted, OpsctlError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# loading the modules of a command makes some 100,000 objects, none of them garbage
COLLECT_AFTER = (100_000, 50, 50)
# name -> "module:attribute", help line. A command's module is imported only when it is used.
COMMANDS: dict[str, tuple[str, str]] = {
    "adopt": ("opsctl.cli.adopt:adopt", "Write a server that runs already into the site file."),
    "init": (
        "opsctl.cli.init:init",
        "Make a site file from what runs on this machine or on a host.",
    ),
    "doctor": (
        "opsctl.cli.doctor:doctor",
        "Check every precondition of hosts and servers; say how to mend it.",
    ),
    "restart": ("opsctl.cli.restart:restart", "Stop, patch, launch and prove a server."),
    "launch": ("opsctl.cli.launch:launch", "Launch a server that does not run, and prove it."),
    "run": ("opsctl.cli.run_command:run", "Run a playbook."),
    "playbook": ("opsctl.cli.playbook:playbook", "List, show and check playbooks."),
    "history": ("opsctl.cli.history:history", "List runs."),
    "show": ("opsctl.cli.history:show", "Show one run."),
    "resume": ("opsctl.cli.resume:resume", "Go on with a run that was cut."),
    "logs": ("opsctl.cli.logs:logs", "Print the log of a server's run."),
    "status": ("opsctl.cli.status:status", "Show servers, processes, GPUs and leftovers."),
    "patch": (
        "opsctl.cli.patch:patch",
        "Apply, prove, revert patches of installed packages.",
    ),
    "speculation": (
        "opsctl.cli.speculation:speculation",
        "Explain how drafting stops under load.",
    ),
    "diagnose": ("opsctl.cli.diagnose:diagnose_command", "Say what went wrong in a log."),
    "stop": (
        "opsctl.cli.stop:stop",
        "Stop a server by identity, and prove its GPU memory free.",
    ),
    "kill": ("opsctl.cli.stop:kill", "The same proof without grace: KILL at once."),
    "ct": (
        "opsctl.cli.ct:ct",
        "Containers on a Proxmox node: look, start, check the GPUs in them.",
    ),
    "gpu": ("opsctl.cli.gpu:gpu", "Show, verify, wait for and probe GPUs."),
    "schema": ("opsctl.cli.schema:schema", "Print the JSON Schema of a --json document."),
    "completion": (
        "opsctl.cli.completion:completion",
        "Print the completion script of a shell.",
    ),
    "config": ("opsctl.cli.config:config", "Check, show and describe the site file."),
    "compare": ("opsctl.cli.compare:compare_command", "Smoke runs side by side, with their noise."),
    "smoke": (
        "opsctl.cli.smoke:smoke",
        "Climb the concurrency until the server breaks; say where and why.",
    ),
}


class LazyGroup(click.Group):
    """A group whose commands are imported on use, so that ``opsctl --help`` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, attribute = entry[0].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return commands by the table, without importing any of them; options as click does."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=COMMANDS[name][1])
            for name in sorted(COMMANDS)
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, COMMANDS[name][1]) for name in sorted(COMMANDS)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], list(COMMANDS), 1) if args else []
            if near:
                raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from None
            raise


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="opsctl")
def root() -> None:
    """Stop, patch, restart and prove healthy the LLM servers that run on your GPUs.

    \b
    Examples:
      opsctl init                     make a site file from what runs here
      opsctl status                   servers, processes, GPUs, leftovers on one screen
      opsctl restart glm5 --dry-run   exactly what would be done; nothing is changed

    stdout carries the result, stderr the talk. Every command that changes something takes
    --dry-run, asks on a terminal, and needs --yes without one.

    Exit codes: 0 done and proven; 2 usage; 10 config; 20 looked, and it is bad; 21 could not tell;
    30 transport; 40 agent; 50 refused; 60 server crashed or hung; 70 smoke failed;
    75 smoke not measured; 130 interrupted; 1 internal.
    """


def main(argv: list[str] | None = None) -> None:
    """Run opsctl and exit with the contract's code."""
    from opsctl.cli.streams import guard, settle

    gc.set_threshold(*COLLECT_AFTER)
    out = guard()
    code = settle(out, run(sys.argv[1:] if argv is None else argv))
    gc.freeze()  # else the interpreter looks through all modules several times as it ends: 60 ms after a stop
    sys.exit(code)


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code; nothing but usage text is raised past here."""
    from opsctl.cli import given
    from opsctl.cli.streams import ResultLostError

    given.forget()
    try:
        result: Any = root.main(args=argv, prog_name="opsctl", standalone_mode=False)
    except OpsctlError as error:
        return _tell(argv, error)
    except click.exceptions.Abort:
        return _tell(argv, Interrupted("interrupted; nothing further was done"))
    except KeyboardInterrupt:
        return _tell(argv, Interrupted("interrupted; nothing further was done"))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # the page of a group: its commands are the answer
        return error.exit_code
    except click.ClickException as error:
        from opsctl.cli.usage import in_our_words

        return _tell(argv, in_our_words(error))
    except ResultLostError:
        return 0  # what was printed had no other result than itself; see streams.settle
    except Exception as error:
        return _tell(argv, error)
    return result if isinstance(result, int) else 0


def _tell(argv: list[str], error: BaseException) -> int:
    from opsctl.cli.app import emit_error

    return emit_error(argv, error)
