"""The main process's side of a request: to the scheduler, back from the detokenizer."""

import asyncio
import json
import time
import uuid


class Answer:
    """What is known of one request's answer so far."""

    def __init__(self, rid, prompt_tokens):
        self.rid = rid
        self.prompt_tokens = prompt_tokens
        self.ids = []
        self.text = ""
        self.done = None
        self.verified = 0
        self.received = time.time()
        self.news = asyncio.Queue()

    def take(self, output):
        """Add what the detokenizer sent."""
        self.ids += output["new"]
        self.text += output["text"]
        self.verified = output["verified"]
        self.done = output["done"]

    def meta_info(self):
        """Return SGLang's account of the request."""
        meta = {
            "id": self.rid,
            "finish_reason": self.done,
            "prompt_tokens": self.prompt_tokens,
            "weight_version": "default",
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": len(self.ids),
            "cached_tokens": 0,
            "cached_tokens_details": None,
            "dp_rank": None,
        }
        if self.done:
            meta["e2e_latency"] = time.time() - self.received
        return meta


class Engine:
    """Requests in flight, and the two sockets to the other processes."""

    def __init__(self, args, tree):
        self.args = args
        self.tree = tree
        self.answers = {}
        self.stats = {"running": 0, "waiting": 0}
        self.generated = 0
        self.prompted = 0
        self.finished = 0
        self.writer = self.kept = self.receiving = None

    async def open(self):
        """Take over the sockets."""
        _, self.writer = await asyncio.open_connection(sock=self.tree.to_scheduler)
        # Both are kept: asyncio closes a connection whose writer nobody holds.
        reader, self.kept = await asyncio.open_connection(
            sock=self.tree.from_detokenizer, limit=1 << 22
        )
        self.receiving = asyncio.ensure_future(self._receive(reader))

    def submit(self, ids, max_new, stop_at=False, probe=False, rid=None):
        """Send one request to the scheduler and return where its answer will appear."""
        rid = rid or uuid.uuid4().hex
        answer = Answer(rid, len(ids))
        self.answers[rid] = answer
        self.prompted += 0 if probe else len(ids)
        message = {"op": "generate", "rid": rid, "last": ids[-1], "prompt": len(ids)}
        self._send(dict(message, max_new=max_new, stop_at=stop_at, probe=probe))
        return answer

    def abort(self, rid="", every=False):
        """Ask the scheduler to give up one request or all."""
        if every or rid in self.answers:
            self._send({"op": "abort", "rid": rid, "all": every})

    def kill_scheduler(self):
        """Have the chosen scheduler end itself."""
        self._send({"op": "kill"})

    def spec_info(self, answer):
        """Return the speculation part of meta_info; empty where there was none."""
        if not self.args.speculative_algorithm or not answer.verified:
            return {}
        made, verified = len(answer.ids), answer.verified
        proposed = verified * max(1, (self.args.speculative_num_draft_tokens or 1) - 1)
        correct = max(0, made - 1 - verified)  # the first token is the prefill's
        return {
            "spec_accept_rate": correct / proposed,
            "spec_accept_length": made / verified,
            "spec_num_correct_drafts": correct,
            "spec_num_proposed_drafts": proposed,
            "spec_verify_ct": verified,
            "spec_accepted_drafts": correct,
            "spec_proposed_drafts": proposed,
        }

    def in_flight(self):
        """Return how many requests are unfinished."""
        return len(self.answers)

    def _send(self, message):
        self.writer.write(json.dumps(message).encode() + b"\n")

    async def _receive(self, reader):
        while True:
            line = await reader.readline()
            if not line:
                return
            message = json.loads(line)
            self.stats = message["stats"]
            for output in message["outputs"]:
                answer = self.answers.get(output["rid"])
                if answer is None:
                    continue  # aborted meanwhile
                answer.take(output)
                self.generated += len(output["new"])
                if answer.done:
                    self.finished += 1
                    del self.answers[answer.rid]
                answer.news.put_nowait((output, answer.done, len(answer.ids), answer.text))
