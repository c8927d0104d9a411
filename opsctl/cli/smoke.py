"""`opsctl smoke`: climb the concurrency until the server breaks, and say where and why."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opsctl.cli.app import App, command, emit

if TYPE_CHECKING:
    from opsctl.cli.smoke_flow import Flow

FILE = click.Path(path_type=Path, dir_okay=False)


@command("smoke", changes=True)
@click.argument("server", required=False)
@click.option("--url", help="Any server by its address instead: http://HOST:PORT.")
@click.option("--levels", help="Concurrency levels, ascending: 1,2,5,10. Default: from the server.")
@click.option(
    "--requests", type=click.IntRange(1), help="Requests per level, one per slot at least."
)
@click.option("--tokens", type=click.IntRange(1), help="Output tokens per request.")
@click.option("--seconds", type=click.FloatRange(0), default=0.0, help="Least duration of a level.")
@click.option(
    "--profile",
    type=click.Choice(["quick", "full"]),
    help="quick: 3 requests per slot. full: 200 and more per level, down again, mixed shapes.",
)
@click.option("--api", type=click.Choice(["generate", "chat", "completions"]), help="Route to use.")
@click.option("--model", help="Model name that OpenAI routes are asked for.")
@click.option("--prompt-kind", type=click.Choice(["ids", "text"]), help="Kind of made prompts.")
@click.option(
    "--prompt-tokens",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Length of the made prompts, in tokens.",
)
@click.option("--prompts", "prompts_path", type=FILE, help="JSONL file with your own prompts.")
@click.option("--shapes", help="Mix these into every level: short,long,prefix,constrained,abort.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the made prompts.")
@click.option(
    "--stall",
    "stall_s",
    type=click.FloatRange(0, min_open=True),
    help="No token for this many seconds while requests run: hung.  [default: 30]",
)
@click.option(
    "--startup",
    "startup_s",
    type=click.FloatRange(0, min_open=True),
    help="Longest wait for a first token, the very first included.  [default: 4 x --stall]",
)
@click.option(
    "--from",
    "way",
    type=click.Choice(["here", "tunnel", "host"]),
    help="Who sends: this machine, this machine through the server's transport, or the server's host."
    "  [default: the site's smoke.from, else here for a server of this machine, and tunnel]",
)
@click.option("--allow-live", is_flag=True, help="Load a server that answers others' requests.")
@click.option(
    "--drift",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Allowed mean disagreement of answers with the lowest level; 0: identical.",
)
@click.option("--reference", metavar="RUN", help="Compare the answers with those of this run.")
@click.option("--keep-going", is_flag=True, help="Climb on after a level with failed requests.")
@click.option("--down/--no-down", default=None, help="Climb down again. Default: full only.")
@click.option("--idle", "idle_s", type=click.FloatRange(0), help="Watched seconds after a level.")
@click.option("--log", "log_path", type=FILE, help="With --url: the server's log on this machine.")
@click.option("--bisect", is_flag=True, help="Find the exact first bad level; restarts the server.")
@click.option("--restart-command", help="With --url and --bisect: how to restart the server.")
@click.option("--fail-if", multiple=True, metavar="COND", help="Gate: 'p99_ttft_ms@10 > 800'.")
@click.option(
    "--min-ratio",
    multiple=True,
    type=(str, float),
    metavar="METRIC R",
    help="Gate: at least R times what --against had, level by level.",
)
@click.option("--against", metavar="RUN", help="The run that --min-ratio compares with.")
@click.option("--slo", multiple=True, metavar="NAME=MS", help="Limit for goodput: ttft_ms=500.")
@click.option("--junit", "junit_path", type=FILE, help="Write JUnit XML, one test per level.")
@click.option("--html", "html_path", type=FILE, help="Write one HTML file with plots and evidence.")
@click.option("--records", "records_path", type=FILE, help="Write every request as a JSON line.")
@click.option("--label", help="Name of this run in comparisons.")
@click.option("--api-key-file", type=FILE, help="File with the API key that requests carry.")
@click.option("--ca-file", type=FILE, help="Certificate authority to trust.")
@click.option("--insecure", is_flag=True, help="Do not verify the server's certificate.")
@click.option(
    "--schema", is_flag=True, help="Print the JSON Schema of --json, and do nothing else."
)
def smoke(app: App, server: str | None, url: str | None, **given: Any) -> int:
    """Climb the concurrency level by level, and find the level that breaks the server.

    Every answer is checked, not only its status. The first crashed, hung or failed level ends the
    climb; the report names the last good and the first bad one.

    \b
    Examples:
      opsctl smoke glm5
      opsctl smoke --url http://127.0.0.1:30000 --levels 1,2,5,10 --json
      opsctl smoke glm5 --profile full --html report.html --fail-if 'p99_ttft_ms@10 > 800'
      opsctl smoke glm5 --bisect
    """
    if given.pop("schema"):
        import json

        from opsctl.schemas import schema_of

        click.echo(json.dumps(schema_of("smoke"), indent=2))
        return 0
    from opsctl.cli.smoke_flow import Flow

    flow = Flow(app, server, url, given)
    if server is None or app.dry_run:
        document, text = flow.run()
        return emit(app, document, text)
    return _told(app, flow, server)


def _told(app: App, flow: Flow, server: str) -> int:
    """Run a smoke of a server of the site, and tell its webhooks how it ended."""
    from opsctl.cli.notified import tell, telling_errors
    from opsctl.site import load_site

    begun_s = time.time()
    site = load_site(app.site_path)
    with telling_errors(site, "smoke", server, None):
        document, text = flow.run()
    tell(site, document, server, None, begun_s)
    return emit(app, document, text)
