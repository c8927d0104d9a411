"""The options of `opsctl smoke` as the options of a run; a server's own settings where they are silent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl.errors import UsageError
from opsctl.sglang.endpoint import Endpoint, parse_url
from opsctl.smoke.judge import Answer
from opsctl.smoke.levels import parse_levels
from opsctl.smoke.prompts import SHAPES, read_prompts
from opsctl.smoke.result import Options

if TYPE_CHECKING:
    from opsctl.site import Server

STALL_S = 30.0

Given = Mapping[str, Any]


def endpoint_of(url: str, given: Given) -> tuple[Endpoint, str | None]:
    """Return the endpoint of --url with its key and certificates, and the API that its path names."""
    endpoint, api = parse_url(url)
    key, ca = given["api_key_file"], given["ca_file"]
    made = replace(
        endpoint,
        api_key=_read_key(key) if key is not None else None,
        verify=not given["insecure"],
        ca_file=str(ca) if ca is not None else None,
    )
    return made, api


def build_options(
    given: Given,
    endpoint: Endpoint,
    api: str | None,
    *,
    slo: Mapping[str, float],
    reference: Mapping[str, Answer] | None,
) -> Options:
    """Return the run's options as the command line gives them.

    Raises:
        UsageError: a level, a shape or the prompts file is wrong.
    """
    prompts = given["prompts_path"]
    shapes = tuple(given["shapes"].split(",")) if given["shapes"] else ()
    for shape in shapes:
        if shape not in SHAPES:
            known = ", ".join(SHAPES)
            raise UsageError(f"there is no shape '{shape}'", next_step=f"one of {known}")
    stall_s = given["stall_s"] or STALL_S
    return Options(
        endpoint,
        api,
        given["model"],
        parse_levels(given["levels"]) if given["levels"] is not None else None,
        given["profile"] or "quick",
        given["requests"],
        given["tokens"],
        given["seconds"],
        given["prompt_kind"],
        given["prompt_tokens"],
        read_prompts(prompts) if prompts is not None else (),
        given["seed"],
        stall_s,
        given["startup_s"] or 4 * stall_s,
        given["allow_live"],
        given["drift"],
        slo,
        shapes,
        given["down"],
        idle_s=given["idle_s"],
        reference=reference,
        go_on=given["keep_going"],
    )


def take_server_settings(options: Options, server: Server, given: Given) -> None:
    """Fill in what the server's entry says where the command line is silent."""
    settings = server.smoke
    told = settings.model_fields_set
    if given["levels"] is None and "levels" in told:
        options.levels = tuple(settings.levels)
    if given["profile"] is None:
        options.profile = settings.profile
    if given["requests"] is None:
        options.requests = settings.requests
    if given["tokens"] is None and "tokens" in told:
        options.tokens = settings.tokens
    if given["startup_s"] is None and given["stall_s"] is None:
        options.startup_s = settings.timeout_s
    if not options.own_prompts and settings.prompts is not None:
        options.own_prompts = read_prompts(settings.prompts)
    if server.speculation is not None:
        options.threshold = server.speculation.disable_above


def _read_key(path: Path) -> str:
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the key file {path} cannot be read: {error}") from error
    if not key or not key.isprintable() or not key.isascii():
        raise UsageError(f"the key file {path} holds no usable key")
    return key
