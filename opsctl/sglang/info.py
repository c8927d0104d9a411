"""What a server says of itself before the first request: API, model, sizes, requests in flight."""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import Any

from opsctl.errors import OpsctlError, TransportError, UsageError
from opsctl.records import dataclass
from opsctl.sglang.client import Answer, ConnectFailed, Ended, ask
from opsctl.sglang.endpoint import Endpoint
from opsctl.sglang.metrics import parse_metrics, running_of_loads

ROUTES = {
    "generate": "/generate",
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
}
PROBE_S = 5.0
QUIET_S = 3.0
AFTER_STALL_S = 1.0  # a server that let one question hang is not asked long again
INFO_ROUTES = ("/server_info", "/get_server_info")
LOAD_ROUTES = ("/v1/loads", "/get_load")


@dataclass(slots=True)
class ServerInfo:
    """What is known of the server; None where it did not say."""

    api: str
    kind: str = "unknown"  # sglang, openai, unknown
    version: str | None = None
    model: str | None = None
    skip_tokenizer: bool = False
    dummy_weights: bool = False
    max_running: int | None = None
    context_tokens: int | None = None
    vocabulary: int | None = None
    graph_sizes: tuple[int, ...] = ()
    draft_tokens: int | None = None
    tp: int | None = None
    speculation: str | None = None
    grammar: bool = False
    load_route: str | None = None
    stalls: bool = False  # it let a question hang: dead workers, or frozen
    metrics: bool = False
    raw: dict[str, Any] = field(default_factory=dict, repr=False)


async def read_info(endpoint: Endpoint, api: str | None, model: str | None) -> ServerInfo:
    """Look at the server and choose the API to load it through.

    Raises:
        TransportError: nothing listens, it is not HTTP, or no route fits.
        UsageError: the server wants another key.
    """
    first: Answer | None = None
    info = ServerInfo(api or "")
    for route in INFO_ROUTES:
        first = await _get(endpoint, info, route)
        if first is not None and first.status == 200:
            break
    raw = first.json() if first is not None and first.status == 200 else None
    if isinstance(raw, dict) and _is_sglang(raw):
        _take_server_info(info, raw)
    if info.vocabulary is None and info.kind == "sglang":
        await _take_model_info(endpoint, info)
    if info.model is None or info.kind != "sglang":
        await _take_models(endpoint, info)
    info.model = model or info.model
    info.api = api or await _choose_api(endpoint, info)
    return info


def _is_sglang(raw: dict[str, Any]) -> bool:
    return any(key in raw for key in ("model_path", "tp_size", "internal_states", "tokenizer_path"))


def _take_server_info(info: ServerInfo, raw: dict[str, Any]) -> None:
    info.kind = "sglang"
    info.raw = raw
    info.version = raw.get("version")
    info.model = raw.get("served_model_name") or raw.get("model_path")
    info.skip_tokenizer = bool(raw.get("skip_tokenizer_init"))
    info.dummy_weights = raw.get("load_format") == "dummy"
    info.context_tokens = _positive(raw.get("context_length")) or _positive(
        raw.get("max_req_input_len")
    )
    info.max_running = _positive(raw.get("max_running_requests"))
    states = raw.get("internal_states")
    for state in states if isinstance(states, list) else []:
        if isinstance(state, dict):
            effective = _positive(state.get("effective_max_running_requests_per_dp"))
            info.max_running = effective or info.max_running
    if not raw.get("disable_cuda_graph"):
        sizes = raw.get("cuda_graph_bs") or raw.get("cuda_graph_bs_decode")
        if isinstance(sizes, list):
            info.graph_sizes = tuple(sorted(s for s in sizes if isinstance(s, int) and s > 0))
        else:
            largest = _positive(raw.get("cuda_graph_max_bs")) or _positive(
                raw.get("cuda_graph_max_bs_decode")
            )
            info.graph_sizes = (largest,) if largest else ()
    info.speculation = raw.get("speculative_algorithm")
    info.draft_tokens = _positive(raw.get("speculative_num_draft_tokens"))
    info.tp = _positive(raw.get("tp_size"))
    info.grammar = raw.get("grammar_backend") not in (None, "none")


async def _take_model_info(endpoint: Endpoint, info: ServerInfo) -> None:
    for route in ("/model_info", "/get_model_info"):
        answer = await _get(endpoint, info, route)
        raw = answer.json() if answer is not None and answer.status == 200 else None
        if isinstance(raw, dict):
            info.vocabulary = _positive(raw.get("vocab_size"))
            return


async def _take_models(endpoint: Endpoint, info: ServerInfo) -> None:
    answer = await _get(endpoint, info, "/v1/models")
    raw = answer.json() if answer is not None and answer.status == 200 else None
    data = raw.get("data") if isinstance(raw, dict) else None
    if isinstance(data, list) and data and isinstance(data[0], dict):
        if info.kind == "unknown":
            info.kind = "openai"
        info.model = info.model or data[0].get("id")
        info.context_tokens = info.context_tokens or _positive(data[0].get("max_model_len"))


async def _choose_api(endpoint: Endpoint, info: ServerInfo) -> str:
    """Return the API: native where SGLang says who it is, else the first route that exists."""
    if info.kind == "sglang":
        return "generate"
    order = ("chat", "completions", "generate")
    if info.kind == "unknown":
        order = ("generate", "chat", "completions")
    for api in order:
        # An empty object: a route that exists answers 400 or 422 without generating anything.
        answer = await _get(endpoint, info, ROUTES[api], method="POST")
        if answer is None or answer.status not in (404, 405, 501):
            return api  # a route that hangs is there; level 1 will say so
    raise TransportError(
        f"{endpoint.url} answers HTTP, but has none of {', '.join(ROUTES.values())}",
        next_step="check the port and the path of the URL, or name the API with --api",
        code="no-api",
        subject=endpoint.url,
    )


async def _get(
    endpoint: Endpoint, info: ServerInfo, route: str, method: str = "GET"
) -> Answer | None:
    """Return the answer, or None when the server was too slow to tell; raises when it is not there."""
    try:
        body: dict[str, Any] | None = {} if method == "POST" else None
        timeout_s = AFTER_STALL_S if info.stalls else PROBE_S
        answer = await ask(endpoint, method, route, body, timeout_s=timeout_s)
    except ConnectFailed as failed:
        if failed.ended in (Ended.STALLED, Ended.CUT, Ended.RESET):
            if failed.ended is Ended.STALLED:
                info.stalls = True
                return None
            if endpoint.tls:
                return None
            await _check_still_there(endpoint, failed)
            return None
        raise unreachable(endpoint, failed) from failed
    if answer.status in (401, 403):
        raise wrong_key(endpoint, answer.status)
    return answer


async def _check_still_there(endpoint: Endpoint, failed: ConnectFailed) -> None:
    """Tell a server that drops one route from a port that never spoke HTTP."""
    await asyncio.sleep(0.05)
    try:
        await ask(endpoint, "GET", "/health", timeout_s=PROBE_S)
    except ConnectFailed as again:
        if again.ended is not Ended.STALLED:
            raise unreachable(endpoint, again) from failed


def unreachable(endpoint: Endpoint, failed: ConnectFailed) -> OpsctlError:
    """Return the error that says why nothing can be asked of the server."""
    where = f"{endpoint.host}:{endpoint.port}"
    if failed.ended is Ended.REFUSED:
        return TransportError(
            f"nothing listens on {where} (connection refused)",
            next_step="start the server, or check the port with `opsctl status`",
            code="no-server",
            subject=endpoint.url,
        )
    if failed.ended is Ended.TLS:
        step = (
            "use an http:// URL" if "speak TLS" in failed.error else "give --ca-file, or --insecure"
        )
        return TransportError(
            f"{where}: {failed.error}", next_step=step, code="tls", subject=endpoint.url
        )
    if failed.ended is Ended.PROTOCOL:
        return TransportError(
            f"{where} is no HTTP server: {failed.error}",
            next_step="check the port; if it speaks TLS, use an https:// URL",
            code="not-http",
            subject=endpoint.url,
        )
    if failed.ended in (Ended.CUT, Ended.RESET):
        return TransportError(
            f"{where} accepts connections but closes them without an answer",
            next_step="check the port; if it speaks TLS, use an https:// URL",
            code="not-http",
            subject=endpoint.url,
        )
    return TransportError(
        f"{where} cannot be reached: {failed.error}", code="unreachable", subject=endpoint.url
    )


def wrong_key(endpoint: Endpoint, status: int) -> UsageError:
    """Return the error for a key that is missing or wrong."""
    what, step = "wants an API key", "put the key into a file and give --api-key-file FILE"
    if endpoint.api_key:
        what, step = (
            "refuses the API key",
            "compare it with the --api-key that the server was started with",
        )
    return UsageError(
        f"{endpoint.url} {what} (HTTP {status})",
        next_step=step,
        code="api-key",
        subject=endpoint.url,
    )


async def read_running(endpoint: Endpoint, info: ServerInfo) -> int | None:
    """Return how many requests the server runs or holds for others now; None: it does not say.

    The live routes are asked first: SGLang writes the gauges of /metrics only every few decode
    steps, so they can be old.
    """
    limit_s = AFTER_STALL_S if info.stalls else QUIET_S
    routes = (info.load_route,) if info.load_route else LOAD_ROUTES
    for route in routes:
        answer = await _quiet(endpoint, route, limit_s)
        running = running_of_loads(answer.json()) if answer else None
        if running is not None:
            info.load_route = route
            return running
    gauges = await read_metrics(endpoint, limit_s)
    if gauges is not None and "running" in gauges:
        info.metrics = True
        return int(gauges["running"] + gauges.get("queue", 0))
    for route in INFO_ROUTES:
        answer = await _quiet(endpoint, route, limit_s)
        if answer is not None:
            return running_of_loads(answer.json())
    return None


async def read_metrics(endpoint: Endpoint, limit_s: float = QUIET_S) -> dict[str, float] | None:
    """Return the numbers of /metrics; None when the server has none."""
    answer = await _quiet(endpoint, "/metrics", limit_s)
    if answer is None:
        return None
    return parse_metrics(answer.body.decode("utf-8", "replace")) or None


async def _quiet(endpoint: Endpoint, route: str, timeout_s: float) -> Answer | None:
    try:
        answer = await ask(endpoint, "GET", route, timeout_s=timeout_s)
    except ConnectFailed:
        return None
    return answer if answer.status == 200 else None


def _positive(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        return None
    return value
