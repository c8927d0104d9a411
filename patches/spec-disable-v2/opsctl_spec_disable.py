"""opsctl's spec-disable-v2: plain decode steps for EAGLEWorkerV2 while many requests run.

With more than N + margin requests in a decode batch, drafting and verifying are skipped until N or
fewer are left. A plain step is one ordinary DECODE forward of the target, in CUDA graphs and an
attention backend of its own, captured at start beside the verify graphs, and the ordinary sampler.
The scheduler gets the next lengths (old + 1) before the target runs.

The draft model's KV cache has nothing for the positions of plain steps. What it needs, the target's
hidden state and the token that followed, is kept in a ring; the draft runs over it in one extend
when drafting comes back, or when the ring is full. Where only keys and values are wanted (the ring
is full, a request has ended) that run ends with the draft's last attention layer: its feed-forward
layers are two thirds of its work.

The scheduler's future map holds what the next step drafts from. A plain step reads and writes only
the token in it: ten small kernels fewer a step. The map asks ``puts_off`` and ``stores``.

Works on 0.5.9 and 0.5.12.post1; what differs is looked up, not guessed.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import time

import torch

from sglang.srt.layers.moe.utils import (
    speculative_moe_a2a_backend_context,
    speculative_moe_backend_context,
)
from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.cuda_graph_runner import CudaGraphRunner
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
    clamp_position,
)
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.utils.common import fast_topk

logger = logging.getLogger(__name__)

RING_BYTES = 256 << 20  # hidden states kept for the draft, at most
RING_ROWS = 8192  # tokens of one catch-up, at most: an ordinary prefill chunk
LOGGED_SWITCHES = 20  # from then on every 100th is logged

_FIELDS = {field.name for field in dataclasses.fields(EagleDraftInput)}
BONUS = "bonus_tokens" if "bonus_tokens" in _FIELDS else "verified_id"  # 0.5.12, 0.5.9
_RESULT = {field.name for field in dataclasses.fields(GenerationBatchResult)}
_ACCUMULATES_PENALTIES = "speculative_num_draft_tokens" in _RESULT  # with spec-v2: since 0.5.12


def install(worker):
    """Return the worker's plain decode, None when the flag is not set."""
    threshold = worker.server_args.speculative_disable_batch_threshold
    if threshold is None:
        return None
    margin = worker.server_args.speculative_disable_batch_margin
    FutureMap.opsctl_plain = PlainDecode(worker, threshold, margin)
    return FutureMap.opsctl_plain


@contextlib.contextmanager
def _swapped(obj, **values):
    old = {key: getattr(obj, key) for key in values}
    for key, value in values.items():
        setattr(obj, key, value)
    try:
        yield
    finally:
        for key, value in old.items():
            setattr(obj, key, value)


class _KeysAreWritten(Exception):
    """Unwinds a forward of the draft once its last attention layer is done."""


class _EndsAfterAttention:
    """The draft's attention backend for a run of which only keys and values matter."""

    def __init__(self, backend, last_layer):
        self._backend = backend
        self._last_layer = last_layer

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def forward(self, q, k, v, layer, *args, **more):
        out = self._backend.forward(q, k, v, layer, *args, **more)
        if layer.layer_id == self._last_layer:
            raise _KeysAreWritten
        return out


class _DecodeGraphs(CudaGraphRunner):
    """DECODE graphs of the target, one token per request, that also return hidden states."""

    def get_spec_info(self, num_tokens):
        return None


class _Counters:
    """What /metrics shows; nothing when the server has metrics off."""

    def __init__(self, server_args, tp_rank):
        self._made = None
        if not server_args.enable_metrics or tp_rank != 0:
            return
        # as in SGLang's collector: import after PROMETHEUS_MULTIPROC_DIR is set
        from prometheus_client import Counter, Gauge

        labels = {"model_name": server_args.served_model_name}
        names = list(labels)
        self._made = {
            "off": Gauge(
                "sglang:opsctl_spec_off",
                "1 while decoding runs without drafts.",
                names,
                multiprocess_mode="mostrecent",
            ).labels(**labels),
            "plain_steps": Counter(
                "sglang:opsctl_spec_plain_steps", "Decode steps without drafts.", names
            ).labels(**labels),
            "switches": Counter(
                "sglang:opsctl_spec_switches", "Times that drafting stopped or came back.", names
            ).labels(**labels),
            "caught_up": Counter(
                "sglang:opsctl_spec_caught_up_tokens",
                "Tokens that the draft model caught up on.",
                names,
            ).labels(**labels),
        }

    def add(self, name, amount=1):
        if self._made:
            self._made[name].inc(amount)

    def set_off(self, off):
        if self._made:
            self._made["off"].set(1 if off else 0)


class _Lag:
    """What the draft model has missed of one request: from position ``first`` on, one ring row each."""

    def __init__(self, req, first):
        self.req = req
        self.pool_index = req.req_pool_idx  # the scheduler clears it when the request ends
        self.first = first
        self.rows = []

    @property
    def end(self):
        return self.first + len(self.rows)

    def as_cached(self, page_size):
        """Return it cut to what the prefix cache keeps of an ended request, None when that is nothing."""
        req = self.req
        tokens = len(req.origin_input_ids) + len(req.output_ids)
        end = min(req.kv_committed_len, tokens - 1) // page_size * page_size
        if not req.finished() or end <= self.first:
            return None
        self.rows = self.rows[: end - self.first]
        return self


class _Backlog:
    """A ring of hidden states, tokens and cache slots of plain steps that the draft has not seen."""

    def __init__(self, rows, device, page_size, keep_ended):
        self.rows = rows
        self.device = device
        self.page_size = page_size
        self.keep_ended = keep_ended
        self.cursor = 0
        self.hidden = None  # made with the first step, which knows width and type
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self.slots = torch.zeros(rows, dtype=torch.int64, device=device)
        self.of = {}  # rid -> _Lag

    def has_room(self, count):
        return self.cursor + count <= self.rows

    def add(self, reqs, positions, hidden, tokens, slots):
        """Keep one step; ``positions`` (CPU) are those that the target has just processed."""
        if self.hidden is None:
            shape = (self.rows, hidden.shape[-1])
            self.hidden = torch.zeros(shape, dtype=hidden.dtype, device=self.device)
        first, last = self.cursor, self.cursor + len(reqs)
        self.hidden[first:last].copy_(hidden)
        self.tokens[first:last].copy_(tokens)
        self.slots[first:last].copy_(slots)
        for row, (req, position) in enumerate(zip(reqs, positions), start=first):
            lag = self.of.get(req.rid)
            if lag is None or lag.end != position:
                # new here, or retracted and prefilled again since: the draft has all before it
                lag = self.of[req.rid] = _Lag(req, position)
            lag.rows.append(row)
        self.cursor = last

    def take(self, reqs, lengths):
        """Return what is to be caught up, and forget it all.

        Returns:
            (index in the batch, lag) of the requests of this batch, and the lags of those that have
            ended: the prefix cache keeps their slots, and another request may go on from them.
        """
        alive = []
        for index, (req, length) in enumerate(zip(reqs, lengths)):
            lag = self.of.pop(req.rid, None)
            if lag is not None and lag.end == length:
                alive.append((index, lag))
        left = self.of.values() if self.keep_ended else ()
        ended = [lag for lag in (one.as_cached(self.page_size) for one in left) if lag is not None]
        self.of = {}
        self.cursor = 0
        return alive, ended


class PlainDecode:
    """Decides between a drafted and a plain step, and runs the plain one."""

    def __init__(self, worker, threshold, margin):
        self.worker = worker
        self.threshold = threshold
        self.margin = margin
        self.off = False
        self.switches = 0
        self.plain_steps = 0
        self.caught_up = 0
        self.counters = _Counters(worker.server_args, worker.tp_rank)
        self.device_module = torch.get_device_module(worker.device)
        self.side_stream = self.device_module.Stream()
        self.kept_alive = collections.deque(maxlen=8)
        self.future = None  # the scheduler's map, known with the first decode batch
        self.reads_all = False
        started = time.perf_counter()
        target = worker.target_worker.model_runner
        self._refuse_unknown(target)
        sizes = self._capture(target)
        # kernels that only the plain step uses are built on first use: now, not under a burst
        clamp_position(torch.ones(2, dtype=torch.int64, device=worker.device))
        keep_ended = not worker.server_args.disable_radix_cache
        # an exception may not cross a compiled graph, nor the recorder of expert distributions
        self.cuts_drafts = not (
            getattr(worker.draft_worker.draft_runner, "piecewise_cuda_graph_runner", None)
            or getattr(worker.server_args, "expert_distribution_recorder_mode", None)
        )
        self.backlog = _Backlog(
            self._ring_rows(target), worker.device, worker.page_size, keep_ended
        )
        if worker.tp_rank == 0:
            logger.info(
                "opsctl spec-disable: ready: no drafts above %d running requests, drafts again at %d; "
                "plain graphs %s, catch-up ring of %d tokens, %.1f s",
                threshold + margin,
                threshold,
                sizes or "none",
                self.backlog.rows,
                time.perf_counter() - started,
            )

    def _refuse_unknown(self, target):
        known = {
            "a hybrid (linear attention) target": target.hybrid_gdn_config,
            "a mamba target": target.mamba2_config,
            "hisparse": getattr(target, "hisparse_coordinator", None),
            "a target with multimodal rotary positions": target.model_is_mrope,
        }
        reason = next((name for name, value in known.items() if value), None)
        if reason:
            raise ValueError(f"--speculative-disable-batch-threshold: not with {reason}")

    def _ring_rows(self, target):
        width = target.model_config.hidden_size * 3 * 2  # EAGLE3: three layers, 16 bit
        chunk = self.worker.server_args.chunked_prefill_size or 0
        rows = min(RING_ROWS, RING_BYTES // width, chunk if chunk > 0 else RING_ROWS)
        return max(rows, self.worker.req_to_token_pool.size)  # a step of every slot fits

    def _capture(self, target):
        """Make the plain step's attention backend, and its CUDA graphs where graphs are on."""
        server_args = self.worker.server_args
        all_sizes = server_args.cuda_graph_bs or []
        sizes = [size for size in all_sizes if size > self.threshold] or all_sizes[-1:]
        self.graphs = None
        workspace = target.init_new_workspace
        # the target's runner and backends take "does this server speculate" from these two
        with _swapped(target, spec_algorithm=SpeculativeAlgorithm.NONE):
            try:
                self.attention = target._get_attention_backend(init_new_workspace=True)
            finally:
                target.init_new_workspace = workspace
            if server_args.disable_cuda_graph or not torch.cuda.is_available() or not sizes:
                return []
            with _swapped(target, attn_backend=self.attention), _swapped(
                server_args, enable_return_hidden_states=True, cuda_graph_bs=list(sizes)
            ):
                self.graphs = _DecodeGraphs(target)
        return sizes

    # -- the decision --

    def takes(self, batch):
        """Return whether this decode batch runs without drafts; bring the draft up to date if not."""
        if batch.forward_mode.is_idle() or batch.spec_info is None:
            return False
        running = len(batch.seq_lens)
        off = running > self.threshold + (0 if self.off else self.margin)
        if off != self.off:
            self._switch(off, running)
        if not off:
            self._read_future(batch)
            if self.backlog.of:
                self._catch_up(batch, proposes=True)
        return off

    # -- the scheduler's future map --

    def puts_off(self, future, batch):
        """Return whether the map is read later: only ``takes`` knows how much of it this step needs."""
        self.future = future
        return not self.reads_all and batch.forward_mode.is_decode()

    def stores(self, future, interval, following):
        """Write what a plain step leaves for the next one; return whether this was a plain step's."""
        if not getattr(following, "opsctl_plain", False):
            return False
        getattr(future, BONUS + "_buf")[interval] = getattr(following, BONUS)
        future.new_seq_lens_buf[interval] = following.new_seq_lens
        return True

    def _read_future(self, batch):
        self.reads_all = True
        try:
            self.future.resolve_future(batch)
        finally:
            self.reads_all = False

    def _switch(self, off, running):
        self.off = off
        self.switches += 1
        self.counters.add("switches")
        self.counters.set_off(off)
        if self.worker.tp_rank != 0:
            return
        if self.switches <= LOGGED_SWITCHES or self.switches % 100 == 0:
            logger.info(
                "opsctl spec-disable: drafts %s at %d running requests "
                "(switch %d, %d plain steps, %d tokens caught up)",
                "off" if off else "on",
                running,
                self.switches,
                self.plain_steps,
                self.caught_up,
            )

    # -- the plain step --

    def run(self, batch):
        """Run one ordinary decode step of the target and return it as a result of stride 1."""
        worker = self.worker
        stream = self.device_module.current_stream()
        batch.seq_lens.record_stream(stream)
        draft = batch.spec_info
        lengths = batch.seq_lens_cpu.tolist()
        if not self.backlog.has_room(len(lengths)):
            self._catch_up(batch, proposes=False)  # this step's rows will ask for proposals again
        new_lengths, done = self._next_lengths(batch.seq_lens, stream)
        step = self._target_step(batch, self._last_tokens(draft, stream), new_lengths)
        target = worker.target_worker.model_runner
        with _swapped(target, attn_backend=self.attention, graph_runner=self.graphs):
            forward_batch = ForwardBatch.init_new(step, target)
            out = target.forward(forward_batch)
        logits = out.logits_output
        tokens = target.sample(logits, forward_batch)
        self.backlog.add(batch.reqs, lengths, logits.hidden_states, tokens, step.out_cache_loc)
        if not any(req.return_hidden_states for req in batch.reqs):
            logits.hidden_states = None  # else 0.5.9 copies them to the host at every step
        if batch.return_logprob and logits.next_token_logprobs is not None:
            logits.next_token_logprobs = logits.next_token_logprobs.unsqueeze(1)
        self.plain_steps += 1
        self.counters.add("plain_steps")
        return self._result(out, logits, tokens, draft, new_lengths, done)

    def _next_lengths(self, lengths, stream):
        """Return the lengths after this step, before it runs: the scheduler need not wait for it.

        ``lengths`` is complete: the scheduler has read it on the CPU in prepare_for_decode.
        """
        with self.device_module.stream(self.side_stream):
            new_lengths = lengths + 1
            done = self.device_module.Event()
            done.record()
        stream.wait_event(done)
        new_lengths.record_stream(stream)
        self.kept_alive.append((lengths, new_lengths))
        return new_lengths, done

    def _last_tokens(self, draft, stream):
        indices = draft.future_indices.indices
        indices.record_stream(stream)  # as the map does: it was made on the scheduler's stream
        return getattr(self.future, BONUS + "_buf")[indices]

    def _target_step(self, batch, last_tokens, new_lengths):
        """Return the batch as an ordinary decode batch: the bonus token enters the KV cache."""
        table = self.worker.req_to_token_pool.req_to_token
        sampling_info = batch.sampling_info
        if not _ACCUMULATES_PENALTIES and sampling_info.penalizer_orchestrator is None:
            # 0.5.9 does not count tokens under spec-v2, and its verify step applies no penalty:
            # applied here they would be those of an empty answer (no end before min_new_tokens)
            sampling_info.acc_linear_penalties = None
        return dataclasses.replace(
            batch,
            forward_mode=ForwardMode.DECODE,
            input_ids=last_tokens.to(torch.int64),
            out_cache_loc=table[batch.req_pool_indices, batch.seq_lens].to(torch.int64),
            seq_lens=new_lengths,
            seq_lens_cpu=batch.seq_lens_cpu + 1,
            seq_lens_sum=batch.seq_lens_sum + len(batch.reqs),
            spec_info=None,
            capture_hidden_mode=CaptureHiddenMode.FULL,
        )

    def _result(self, out, logits, tokens, draft, new_lengths, done):
        following = EagleDraftInput(
            # nothing drafts from these before a catch-up has replaced them
            topk_p=draft.topk_p,
            topk_index=draft.topk_index,
            hidden_states=draft.hidden_states,
            new_seq_lens=new_lengths,
            verify_done=done,
            **{BONUS: tokens},
        )
        following.opsctl_plain = True
        more = {
            "speculative_num_draft_tokens": 1,
            "routed_experts_output": getattr(out, "routed_experts_output", None),
            "indexer_topk_output": getattr(out, "indexer_topk_output", None),
            "expert_distribution_metrics": getattr(out, "expert_distribution_metrics", None),
        }
        result = GenerationBatchResult(
            logits_output=logits,
            next_token_ids=tokens,
            can_run_cuda_graph=out.can_run_graph,
            next_draft_input=following,
            accept_lens=torch.ones(len(tokens), dtype=torch.int32),  # on the CPU, where it is read
            **{name: value for name, value in more.items() if name in _RESULT},
        )
        result.opsctl_stride = 1  # 0.5.9: the output processor asks for it
        return result

    # -- the draft model --

    def _catch_up(self, batch, proposes):
        """Bring the draft's cache up to date; with ``proposes`` its first proposals, too."""
        alive, ended = self.backlog.take(batch.reqs, batch.seq_lens_cpu.tolist())
        only_keys = ended if proposes else [*ended, *(lag for _, lag in alive)]
        # attention backends are sized for this many requests, and the ended ones come on top
        most = self.worker.req_to_token_pool.size
        for first in range(0, len(only_keys), most):
            self._draft_over(batch, only_keys[first : first + most], only_keys=True)
        if not (alive and proposes):
            return
        logits = self._draft_over(batch, [lag for _, lag in alive])
        probabilities = torch.softmax(logits.next_token_logits, dim=-1)
        topk_p, topk_index = fast_topk(probabilities, self.worker.topk, dim=-1)
        draft = batch.spec_info
        index = torch.tensor([index for index, _ in alive], device=self.worker.device)
        draft.topk_p[index] = topk_p
        draft.topk_index[index] = topk_index
        draft.hidden_states[index] = logits.hidden_states.to(draft.hidden_states.dtype)

    def _draft_over(self, batch, lags, only_keys=False):
        """Run the draft over what these requests have missed; return its logits, or None."""
        step = self._extend_batch(batch, lags)
        drafter = self.worker.draft_worker
        runner = drafter.draft_runner
        logits = None
        with (
            drafter.draft_tp_context(runner.tp_group),
            speculative_moe_backend_context(),
            speculative_moe_a2a_backend_context(),
            contextlib.suppress(_KeysAreWritten),
        ):
            forward_batch = ForwardBatch.init_new(step, runner)
            forward_batch.return_logprob = False
            if only_keys and self.cuts_drafts:
                last = runner.model_config.num_hidden_layers - 1
                forward_batch.attn_backend = _EndsAfterAttention(runner.attn_backend, last)
            logits = runner.forward(forward_batch).logits_output
        self.caught_up += step.extend_num_tokens
        self.counters.add("caught_up", step.extend_num_tokens)
        return logits

    def _extend_batch(self, batch, lags):
        """Return one prefill-like batch of the draft over the missed positions.

        Of an ended request only keys and values matter, and those of a draft's layer come from its
        inputs alone; its row of the token table may be another's by now, so its slots are our own.
        """
        device = self.worker.device
        rows = torch.tensor([row for lag in lags for row in lag.rows], device=device)
        tokens = self.backlog.tokens[rows]
        lengths_cpu = torch.tensor([lag.end for lag in lags], dtype=batch.seq_lens_cpu.dtype)
        lengths = lengths_cpu.to(device=device, dtype=batch.seq_lens.dtype)
        counts = [len(lag.rows) for lag in lags]
        last = torch.tensor(counts, device=device).cumsum(0) - 1
        pool = [lag.pool_index for lag in lags]
        return dataclasses.replace(
            batch,
            forward_mode=ForwardMode.EXTEND,
            input_ids=tokens,
            req_pool_indices=torch.tensor(pool, dtype=batch.req_pool_indices.dtype, device=device),
            seq_lens=lengths,
            orig_seq_lens=lengths.to(torch.int32),
            seq_lens_cpu=lengths_cpu,
            seq_lens_sum=int(lengths_cpu.sum()),
            out_cache_loc=self.backlog.slots[rows],
            extend_num_tokens=len(tokens),
            extend_seq_lens=counts,
            extend_prefix_lens=[lag.first for lag in lags],
            extend_logprob_start_lens=[0] * len(lags),
            return_logprob=False,
            top_logprobs_nums=None,
            token_ids_logprobs=None,
            multimodal_inputs=None,
            lora_ids=[None] * len(lags),
            reqs=[lag.req for lag in lags],
            capture_hidden_mode=CaptureHiddenMode.LAST,
            spec_info=EagleDraftInput(
                hidden_states=self.backlog.hidden[rows],
                new_seq_lens=lengths,
                num_tokens_per_req=1,
                num_tokens_for_logprob_per_req=1,
                **{BONUS: tokens[last].to(torch.int32)},
            ),
        )
