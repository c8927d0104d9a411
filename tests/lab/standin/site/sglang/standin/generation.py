"""/generate and the two OpenAI endpoints, streamed and whole, with the ordered faults."""

import asyncio
import time

from sglang.standin import tokens

DEFAULT_NEW_TOKENS = 128
CHAT_ANSWER_TOKENS = 32


class Wish:
    """What a client asks for, checked."""

    def __init__(self, body, ids, max_new, stop_at=False):
        self.body = body
        self.ids = ids
        self.max_new = max_new
        self.stop_at = stop_at
        self.stream = bool(body.get("stream"))
        self.model = body.get("model") or "default"


class Generation:
    """Turns requests into answers."""

    def __init__(self, args, settings, engine):
        self.args = args
        self.settings = settings
        self.engine = engine

    async def generate(self, connection, request):
        """SGLang's own endpoint: text and ids are cumulative in a stream."""
        wish = await self._read(connection, request, native)
        if wish is None:
            return
        answer = self.engine.submit(wish.ids, wish.max_new, wish.stop_at, rid=wish.body.get("rid"))
        if not wish.stream:
            await self._until_done(connection, answer)
            if answer.done:
                await connection.answer(200, self._native_event(answer))
            return

        async def event(news):
            _, done, count, text = news
            partial = self._native_event(answer)
            meta = dict(partial["meta_info"], completion_tokens=count, finish_reason=done)
            await connection.event(
                dict(partial, text=text, output_ids=answer.ids[:count], meta_info=meta)
            )

        await self._stream(connection, answer, event)

    async def completions(self, connection, request):
        """The OpenAI endpoint for a prompt."""
        await self._openai(connection, request, completion_wish, "text_completion")

    async def chat(self, connection, request):
        """The OpenAI endpoint for a conversation."""
        await self._openai(connection, request, chat_wish, "chat.completion")

    async def _openai(self, connection, request, parse, kind):
        wish = await self._read(connection, request, parse)
        if wish is None:
            return
        answer = self.engine.submit(wish.ids, wish.max_new, wish.stop_at)
        common = {"id": answer.rid, "created": int(time.time()), "model": wish.model}
        is_chat = kind == "chat.completion"
        if not wish.stream:
            await self._until_done(connection, answer)
            if not answer.done:
                return
            choice = dict(choice_end(answer.done), logprobs=None)
            if is_chat:
                choice["message"] = {
                    "role": "assistant",
                    "content": answer.text,
                    "tool_calls": None,
                }
            else:
                choice["text"] = answer.text
            body = dict(common, object=kind, choices=[choice], usage=usage(answer))
            await connection.answer(200, dict(body, metadata={"weight_version": "default"}))
            return
        common["object"] = kind + ".chunk" if is_chat else kind
        role = {"reasoning_content": None, "role": "assistant", "content": ""}
        first = {"index": 0, "delta": role, "logprobs": None, "finish_reason": None}
        started = not is_chat

        async def event(news):
            nonlocal started
            output, done, _, _ = news
            if not started:
                started = True
                head = dict(first, matched_stop=None)
                await connection.event(dict(common, choices=[head]))
            choice = {"index": 0, "logprobs": None, "finish_reason": None, "matched_stop": None}
            if is_chat:
                delta = {"reasoning_content": None, "content": output["text"]}
                await connection.event(dict(common, choices=[dict(choice, delta=delta)]))
                if done:
                    end = dict(choice, delta={"reasoning_content": None}, **choice_end(done))
                    await connection.event(dict(common, choices=[end]))
            else:
                end = choice_end(done) if done else {}
                part = dict(choice, text=output["text"], **end)
                await connection.event(dict(common, choices=[part], usage=None))

        async def last():
            if (wish.body.get("stream_options") or {}).get("include_usage"):
                await connection.event(dict(common, choices=[], usage=usage(answer)))

        await self._stream(connection, answer, event, last)

    async def _read(self, connection, request, parse):
        """Return the checked wish; otherwise the client has its error already."""
        settings, busy = self.settings, self.engine.in_flight() + 1
        if settings.http_error > 0 and busy > settings.http_error_above:
            await connection.answer(settings.http_error, {"error": {"message": "server is busy"}})
            return None
        try:
            wish = parse(request.json())
            limit = self.args.context_length
            if len(wish.ids) > limit:
                raise ValueError(
                    "The input (%d tokens) is longer than the model's context length (%d tokens)."
                    % (len(wish.ids), limit)
                )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            await connection.answer(400, {"error": {"message": str(error)}})
            return None
        if 0 <= settings.error_above < busy:
            problem = {"error": {"message": "scheduler raised an exception", "code": 500}}
            if wish.stream:
                connection.begin_stream()
                await connection.event(problem)
                await connection.event("[DONE]")
                await connection.end_stream()
            else:
                await connection.answer(200, problem)
            return None
        return wish

    async def _until_done(self, connection, answer):
        """Wait for a whole answer; a client that goes has its request aborted."""
        while not answer.done:
            try:
                await asyncio.wait_for(answer.news.get(), 0.5)
            except asyncio.TimeoutError:
                if connection.gone():
                    self.engine.abort(answer.rid)
                    return

    async def _stream(self, connection, answer, event, last=None):
        settings, finished = self.settings, False
        cut = settings.cut_after_tokens >= 0 and self.engine.in_flight() > settings.cut_above
        connection.begin_stream()
        try:
            while not finished:
                try:
                    news = await asyncio.wait_for(answer.news.get(), 0.5)
                except asyncio.TimeoutError:
                    if connection.gone():
                        return
                    continue
                if cut and news[2] > settings.cut_after_tokens:
                    await connection.cut()
                finished = bool(news[1])
                if finished and settings.no_done:
                    await connection.end_stream()
                    return
                await event(news)
            if last:
                await last()
            await connection.event("[DONE]")
            await connection.end_stream()
        finally:
            if not answer.done:
                self.engine.abort(answer.rid)

    def _native_event(self, answer):
        spec = self.engine.spec_info(answer) if answer.done else {}
        meta = dict(answer.meta_info(), **spec)
        return {"text": answer.text, "output_ids": answer.ids, "meta_info": meta}


def native(body):
    """Read a /generate body."""
    sampling = body.get("sampling_params") or {}
    if body.get("input_ids") is not None:
        ids = [int(token) for token in body["input_ids"]]
    elif isinstance(body.get("text"), str):
        ids = tokens.encode(body["text"])
    else:
        raise ValueError("Either text, input_ids or input_embeds should be provided.")
    return Wish(body, ids or [0], int(sampling.get("max_new_tokens", DEFAULT_NEW_TOKENS)))


def completion_wish(body):
    """Read a /v1/completions body."""
    prompt = body["prompt"]
    ids = tokens.encode(prompt) if isinstance(prompt, str) else [int(token) for token in prompt]
    return Wish(body, ids, int(body.get("max_tokens") or 16))


def chat_wish(body):
    """Read a /v1/chat/completions body; without a limit the answer stops by itself."""
    text = " ".join(str(message.get("content") or "") for message in body["messages"])
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit:
        return Wish(body, tokens.encode(text), int(limit))
    return Wish(body, tokens.encode(text), CHAT_ANSWER_TOKENS, stop_at=True)


def choice_end(done):
    """Return the end of a choice in OpenAI's words."""
    return {"index": 0, "finish_reason": done["type"], "matched_stop": done.get("matched")}


def usage(answer):
    """Return OpenAI's account of the request."""
    made = len(answer.ids)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "total_tokens": answer.prompt_tokens + made,
        "completion_tokens": made,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }
