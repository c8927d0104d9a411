"""The endpoints of SGLang 0.5.12 that watch a server: health, model, load, metrics."""

import asyncio
import time

from sglang.standin import generation
from sglang.version import __version__

HEALTH_TIMEOUT_S = 20.0
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Routes:
    """Finds the endpoint of a request."""

    def __init__(self, args, settings, engine):
        self.args = args
        self.settings = settings
        self.engine = engine
        self.ready = False
        self.leaving = False
        self.generation = generation.Generation(args, settings, engine)
        self.table = {
            "/health": self.health,
            "/health_generate": self.health,
            "/model_info": self.model_info,
            "/get_model_info": self.model_info,
            "/server_info": self.server_info,
            "/get_server_info": self.server_info,
            "/v1/models": self.models,
            "/metrics": self.metrics,
            "/get_load": self.get_load,
            "/v1/loads": self.loads,
            "/flush_cache": self.flush_cache,
            "/abort_request": self.abort_request,
            "/generate": self.generation.generate,
            "/v1/completions": self.generation.completions,
            "/v1/chat/completions": self.generation.chat,
        }

    async def dispatch(self, connection, request):
        """Answer one request."""
        endpoint = self.table.get(request.path)
        if not self._allowed(request):
            await connection.answer(401, {"error": "Unauthorized"})
            return
        if endpoint is None or (request.path == "/metrics" and not self.args.enable_metrics):
            await connection.answer(404, {"detail": "Not Found"})
            return
        await endpoint(connection, request)

    def _allowed(self, request):
        if not self.args.api_key or request.path in ("/health", "/metrics"):
            return True
        return request.headers.get("authorization") == "Bearer " + self.args.api_key

    async def health(self, connection, request):
        """Generate one token; 503 while starting, while leaving and when nothing comes."""
        if self.settings.health_lies:
            await connection.answer(200)
            return
        if self.leaving or not self.ready:
            await connection.answer(503)
            return
        await connection.answer(200 if await self.probe() else 503)

    async def probe(self):
        """Return whether the scheduler and the detokenizer answer in time."""
        answer = self.engine.submit([0], 1, probe=True)
        try:
            await asyncio.wait_for(answer.news.get(), HEALTH_TIMEOUT_S)
            return True
        except asyncio.TimeoutError:
            return False
        finally:
            self.engine.answers.pop(answer.rid, None)

    async def model_info(self, connection, request):
        """Say which model this is."""
        await connection.answer(
            200,
            {
                "model_path": self.args.model_path,
                "tokenizer_path": self.args.tokenizer_path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
            },
        )

    async def server_info(self, connection, request):
        """Give the flags, the sizes and the state."""
        state = {
            "last_gen_throughput": 0.0,
            "memory_usage": {"weight": 0.0, "kvcache": 0.0, "token_capacity": 8192, "graph": 0},
            "effective_max_running_requests_per_dp": self.args.max_running_requests,
        }
        if self.args.speculative_algorithm:
            state["avg_spec_accept_length"] = self.settings.accept
        facts = {
            "status": "ready",
            "max_total_num_tokens": self.args.max_total_tokens or 8192,
            "max_req_input_len": self.args.context_length - 6,
            "internal_states": [state],
            "version": __version__,
        }
        await connection.answer(200, dict(vars(self.args), **facts))

    async def models(self, connection, request):
        """List the one model."""
        card = {
            "id": self.args.served_model_name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": self.args.served_model_name,
            "parent": None,
            "max_model_len": self.args.context_length,
        }
        await connection.answer(200, {"object": "list", "data": [card]})

    async def get_load(self, connection, request):
        """Say how many requests run and wait, in the old form."""
        stats = self.engine.stats
        load = {
            "dp_rank": None,
            "num_reqs": stats["running"] + stats["waiting"],
            "num_waiting_reqs": stats["waiting"],
            "num_tokens": 0,
            "num_pending_tokens": 0,
            "ts_tic": time.perf_counter(),
        }
        await connection.answer(200, [load])

    async def loads(self, connection, request):
        """Say how many requests run and wait."""
        stats = self.engine.stats
        load = {
            "num_running_reqs": stats["running"],
            "num_waiting_reqs": stats["waiting"],
            "num_used_tokens": 0,
            "num_total_tokens": 0,
            "max_total_num_tokens": self.args.max_total_tokens or 8192,
            "token_usage": 0.0,
            "gen_throughput": 0.0,
            "cache_hit_rate": 0.0,
            "utilization": 0.0,
            "max_running_requests": self.args.max_running_requests,
        }
        head = {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())}
        await connection.answer(200, dict(head, version=__version__, dp_rank_count=1, loads=[load]))

    async def metrics(self, connection, request):
        """Give the counters that smoke reads, in Prometheus form."""
        stats, name = self.engine.stats, self.args.served_model_name
        labels = '{engine_type="unified",model_name="%s",tp_rank="0"}' % name
        accept = self.settings.accept if self.args.speculative_algorithm else 0.0
        rows = [
            ("num_running_reqs", "gauge", stats["running"]),
            ("num_queue_reqs", "gauge", stats["waiting"]),
            ("token_usage", "gauge", 0.0),
            ("spec_accept_length", "gauge", accept),
            ("num_retracted_reqs", "gauge", 0),
            ("prompt_tokens_total", "counter", self.engine.prompted),
            ("generation_tokens_total", "counter", self.engine.generated),
            ("num_requests_total", "counter", self.engine.finished),
        ]
        lines = []
        for name, kind, value in rows:
            lines.append("# TYPE sglang:%s %s" % (name, kind))
            lines.append("sglang:%s%s %s" % (name, labels, float(value)))
        await connection.answer(200, "\n".join([*lines, ""]).encode(), METRICS_TYPE)

    async def flush_cache(self, connection, request):
        """Say that the cache is empty."""
        text = (
            "Cache flushed.\nPlease check backend logs for more details. (When there are running or "
            "waiting requests, the operation will not be performed.)\n"
        )
        await connection.answer(200, text.encode(), "text/plain; charset=utf-8")

    async def abort_request(self, connection, request):
        """Abort one request or all of them."""
        try:
            wish = request.json()
        except ValueError as error:
            await connection.answer(400, {"error": {"message": str(error)}})
            return
        self.engine.abort(wish.get("rid") or "", bool(wish.get("abort_all")))
        await connection.answer(200)
