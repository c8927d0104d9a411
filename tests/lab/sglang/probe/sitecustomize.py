"""Looks into the draft model of a lab server, and stands in for its GPU sampling kernels.

OPSCTL_PROBE_DRAFT=FILE: keep, per prompt, the draft model's keys and values, and its first proposals, at the
start of each drafted step. OPSCTL_PROBE_RING=1: the smallest ring that spec-disable-v2 allows.
OPSCTL_PROBE_RANKS=FOLDER: a file per tensor-parallel rank, with a line per decode step and what was decided.
"""

import importlib.abc
import importlib.util
import os
import sys


def look_at_draft(module):
    """Record what each drafted step starts from."""
    import torch

    target = os.environ.get("OPSCTL_PROBE_DRAFT")
    if not target:
        return
    draft = module.EagleDraftWorker.draft
    steps, caches = {}, {}

    def recorded(self, batch):
        if not batch.forward_mode.is_idle():
            pool, table = self.draft_runner.token_to_kv_pool, self.req_to_token_pool.req_to_token
            for row, req in enumerate(batch.reqs):
                length = int(batch.seq_lens_cpu[row])
                slots = table[batch.req_pool_indices[row], :length].long()
                prompt = tuple(req.origin_input_ids)
                proposal = int(batch.spec_info.topk_index[row, 0])
                steps.setdefault(prompt, {})[length] = proposal
                keys, values = pool.get_key_buffer(0)[slots], pool.get_value_buffer(0)[slots]
                caches[prompt] = torch.stack([keys, values])
            torch.save((steps, caches), target)
        return draft(self, batch)

    module.EagleDraftWorker.draft = recorded


def small_ring(module):
    """Fill the catch-up ring often."""
    if os.environ.get("OPSCTL_PROBE_RING"):
        module.RING_BYTES = 1


def decisions(module):
    """Write down what each rank decides, step by step."""
    folder = os.environ.get("OPSCTL_PROBE_RANKS")
    if not folder:
        return
    takes = module.PlainDecode.takes

    def told(self, batch):
        off = takes(self, batch)
        if not batch.forward_mode.is_idle():
            lengths = sorted(batch.seq_lens_cpu.tolist())
            with open(os.path.join(folder, f"rank{self.worker.tp_rank}"), "a") as file:
                file.write(f"{off} {lengths}\n")
        return off

    module.PlainDecode.takes = told


def spec_disable(module):
    """Both hooks of the patch's module."""
    small_ring(module)
    decisions(module)


def grammar(module):
    """Apply xgrammar's mask on the CPU."""
    import xgrammar

    def apply(logits, vocab_mask):
        xgrammar.apply_token_bitmask_inplace(logits, vocab_mask.to("cpu"))

    module.XGrammarGrammar.apply_vocab_mask = staticmethod(apply)


def sampling(module):
    """Verify chains of drafts at a temperature: accept by the target's probability, else sample."""
    import torch

    def keep(probs, allowed):
        kept = torch.where(allowed, probs, 0.0)
        return kept / kept.sum(-1, keepdim=True)

    def top_k(probs, ks):
        rank = probs.argsort(-1, descending=True).argsort(-1)
        return keep(probs, rank < ks.view(-1, 1))

    def top_p(probs, ps):
        ordered, places = probs.sort(-1, descending=True)
        before = (ordered.cumsum(-1) - ordered).gather(-1, places.argsort(-1))
        return keep(probs, before < ps.view(-1, 1))

    def verify(
        predicts, accept_index, accept_token_num, candidates, uniform_samples, target_probs, **named
    ):
        batch, chain = candidates.shape
        for row in range(batch):
            taken = 0
            accept_index[row, 0] = row * chain
            probs = target_probs[row, 0].clone()
            while taken < chain - 1:
                token = int(candidates[row, taken + 1])
                if float(uniform_samples[row, taken]) > float(probs[token]):
                    probs[token] = 0.0
                    break
                predicts[row * chain + taken] = token
                taken += 1
                accept_index[row, taken] = row * chain + taken
                probs = target_probs[row, taken].clone()
            predicts[row * chain + taken] = torch.multinomial(probs / probs.sum(), 1)[0]
            accept_token_num[row] = taken

    module.top_k_renorm_prob = top_k
    module.top_p_renorm_prob = top_p
    module.tree_speculative_sampling_target_only = verify


HOOKS = {
    "sglang.srt.speculative.eagle_worker_v2": look_at_draft,
    "sglang.srt.speculative.opsctl_spec_disable": spec_disable,
    "sglang.srt.constrained.xgrammar_backend": grammar,
    "sglang.srt.speculative.eagle_info_v2": sampling,
}


class Finder(importlib.abc.MetaPathFinder):
    """Runs a hook once after its module."""

    def find_spec(self, name, path, target=None):
        hook = HOOKS.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def executed(module):
            execute(module)
            hook(module)

        spec.loader.exec_module = executed
        return spec


sys.meta_path.insert(0, Finder())
