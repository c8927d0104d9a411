"""`opsctl smoke`: climb the concurrency until the server breaks, and say where and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from opsctl.cli.app import App, command, emit

if TYPE_CHECKING:
    from opsctl.sglang.client import Endpoint
    from opsctl.smoke.run import Options


@command("smoke")
@click.argument("server", required=False)
@click.option("--url", help="Any server by its address instead: http://HOST:PORT.")
@click.option("--levels", help="Concurrency levels, ascending: 1,2,5,10. Default: from the server.")
@click.option(
    "--requests", type=click.IntRange(1), help="Requests per level (at least one per slot)."
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
@click.option("--prompt-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option(
    "--prompts",
    "prompts_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSONL file with prompts of your own.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the made prompts.")
@click.option(
    "--stall",
    "stall_s",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    help="No token for this many seconds while requests run: hung.",
)
@click.option(
    "--startup",
    "startup_s",
    type=click.FloatRange(0, min_open=True),
    default=120.0,
    show_default=True,
    help="Longest wait for a first token, the very first request included.",
)
@click.option("--allow-live", is_flag=True, help="Load a server that answers others' requests.")
@click.option(
    "--drift",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Allowed mean disagreement of answers with the lowest level; 0: identical.",
)
@click.option("--keep-going", is_flag=True, help="Climb on after a level with failed requests.")
@click.option("--down/--no-down", default=None, help="Climb down again. Default: full only.")
@click.option("--idle", "idle_s", type=click.FloatRange(0), help="Watched seconds after a level.")
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the API key that requests carry.",
)
@click.option("--ca-file", type=click.Path(path_type=Path, dir_okay=False), help="CA to trust.")
@click.option("--insecure", is_flag=True, help="Do not verify the server's certificate.")
def smoke(app: App, server: str | None, url: str | None, **given: object) -> int:
    """Climb the concurrency level by level, and find the level that breaks the server.

    Every answer is checked, not only its status. The first crashed, hung or failed level ends the
    climb; the report names the last good and the first bad one.

    \b
    Examples:
      opsctl smoke glm5
      opsctl smoke --url http://127.0.0.1:30000 --levels 1,2,5,10 --json
      opsctl smoke --url https://host:443/v1 --api-key-file key --profile full
    """
    from opsctl.smoke.report import PlainView, report_data, smoke_document, text_report
    from opsctl.smoke.run import run_smoke
    from opsctl.smoke.store import new_run_id, save_result

    options = _options(app, server, url, given)
    view = PlainView()
    try:
        report = run_smoke(options, on_event=view)
    finally:
        view.close()
    run = new_run_id()
    save_result(app.state(), run, report_data(report, stored=True))
    return emit(app, smoke_document(report, run), lambda: text_report(report, run))


def _options(app: App, server: str | None, url: str | None, given: dict[str, object]) -> Options:
    from opsctl.errors import UsageError
    from opsctl.smoke.levels import parse_levels
    from opsctl.smoke.prompts import read_prompts
    from opsctl.smoke.run import Options

    if (server is None) == (url is None):
        raise UsageError(
            "name a server of the site file, or give --url",
            next_step="for example: opsctl smoke --url http://127.0.0.1:30000",
        )
    if url is None:
        raise UsageError("a server of the site file cannot be smoked yet", next_step="give --url")
    levels = given.pop("levels")
    prompts = given.pop("prompts_path")
    endpoint, api = _endpoint(url, given)
    given["api"] = given["api"] or api
    given["profile"] = given["profile"] or "quick"
    given["go_on"] = given.pop("keep_going")
    return Options(
        endpoint,
        levels=parse_levels(str(levels)) if levels is not None else None,
        own_prompts=read_prompts(prompts) if isinstance(prompts, Path) else (),
        **given,  # type: ignore[arg-type]
    )


def _endpoint(url: str, given: dict[str, object]) -> tuple[Endpoint, str | None]:
    from dataclasses import replace

    from opsctl.sglang.client import parse_url

    endpoint, api = parse_url(url)
    key_file, ca_file = given.pop("api_key_file"), given.pop("ca_file")
    key = _read_key(key_file) if isinstance(key_file, Path) else None
    verify = not given.pop("insecure")
    ca = str(ca_file) if ca_file is not None else None
    return replace(endpoint, api_key=key, verify=verify, ca_file=ca), api


def _read_key(path: Path) -> str:
    from opsctl.errors import UsageError

    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the key file {path} cannot be read: {error}") from error
    if not key or not key.isprintable() or not key.isascii():
        raise UsageError(f"the key file {path} holds no usable key")
    return key
