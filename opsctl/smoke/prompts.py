"""Prompts and request bodies: seeded, so that two runs and two levels send the same."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opsctl.errors import UsageError
from opsctl.records import dataclass
from opsctl.sglang.info import ServerInfo

SHAPES = ("plain", "short", "long", "prefix", "constrained", "abort")
FIRST_ID = 3  # below are padding, begin and end in the usual vocabularies
SAFE_VOCABULARY = 256  # ids below this exist in every vocabulary met so far
LONG_FACTOR = 8
CONTEXT_SPARE_TOKENS = 16
SUBJECTS = ("river", "bridge", "engine", "garden", "library", "harbour", "mountain", "telescope")
TASKS = (
    "Explain in plain words how a {a} works and why it matters for a {b}.",
    "Write a short story about a {a} and a {b}.",
    "List the steps to plan a visit to a {a} near a {b}.",
    "Compare a {a} with a {b} and say which is older.",
    "Describe a {a} to somebody who has only ever seen a {b}.",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt; ``key`` names it across levels and runs."""

    key: str
    content: str | tuple[int, ...] | tuple[dict[str, Any], ...]
    shape: str = "plain"

    @property
    def is_ids(self) -> bool:
        return isinstance(self.content, tuple) and (
            not self.content or isinstance(self.content[0], int)
        )


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Makes the prompts of one run."""

    seed: int
    kind: str  # ids or text
    prompt_tokens: int
    vocabulary: int
    own: tuple[Prompt, ...] = ()  # the user's file instead
    most_tokens: int | None = None  # longest prompt that the context takes

    def pool(self, index: int) -> Prompt:
        """Return a prompt that comes again at every level."""
        if self.own:
            return self.own[index % len(self.own)]
        return self._make(f"p{index}", "plain")

    def fresh(self, level: str, index: int) -> Prompt:
        """Return a prompt that this level alone sends."""
        if self.own:
            return self.own[index % len(self.own)]
        return self._make(f"{level}.{index}", "plain")

    def shaped(self, shape: str, level: str, index: int) -> Prompt:
        """Return a prompt of one of the mixed shapes."""
        if self.own:
            own = self.own[index % len(self.own)]
            return Prompt(own.key, own.content, shape if shape == "abort" else "plain")
        return self._make(f"{shape}.{level}.{index}", shape)

    def _make(self, key: str, shape: str) -> Prompt:
        rng = random.Random(f"{self.seed}/{key}")
        length = self.prompt_tokens
        if shape == "long":
            length = min(length * LONG_FACTOR, self.most_tokens or length * LONG_FACTOR)
        elif shape == "short":
            length = max(1, length // 8)
        if self.kind == "ids":
            ids = [rng.randrange(FIRST_ID, self.vocabulary) for _ in range(length)]
            if shape == "prefix":
                shared = random.Random(f"{self.seed}/prefix")
                ids = [shared.randrange(FIRST_ID, self.vocabulary) for _ in range(length)]
                ids += [rng.randrange(FIRST_ID, self.vocabulary) for _ in range(8)]
            return Prompt(key, tuple(ids), shape)
        return Prompt(key, self._text(rng, shape, length), shape)

    def _text(self, rng: random.Random, shape: str, length: int) -> str:
        def task(of: random.Random) -> str:
            a, b = of.sample(SUBJECTS, 2)
            return of.choice(TASKS).format(a=a, b=b) + f" Number {of.randrange(10_000)}"

        lead = random.Random(f"{self.seed}/prefix") if shape == "prefix" else rng
        words: list[str] = []
        while len(" ".join(words).split()) < length * 3 // 4 - 16:
            words.append(task(lead))
        words.append(task(rng))
        return " ".join(words)


def make_prompts(
    info: ServerInfo,
    *,
    seed: int,
    kind: str | None,
    prompt_tokens: int,
    tokens: int,
    own: Sequence[Prompt] = (),
) -> PromptMaker:
    """Return the maker of a run's prompts, fitted to what the server can take.

    Raises:
        UsageError: when the request cannot fit the context, or text meets a server without a tokenizer.
    """
    chosen = kind or ("ids" if info.skip_tokenizer else "text")
    if info.skip_tokenizer and (chosen == "text" or any(not p.is_ids for p in own)):
        raise UsageError(
            "the server runs with --skip-tokenizer-init and takes token ids only",
            next_step="use --prompt-kind ids, or a prompts file with input_ids",
        )
    if chosen == "ids" and info.api == "chat":
        raise UsageError(
            "the chat route takes no token ids", next_step="use --api generate or completions"
        )
    if info.context_tokens is not None and prompt_tokens + tokens > info.context_tokens:
        raise UsageError(
            f"a prompt of {prompt_tokens} tokens and {tokens} new ones do not fit the server's "
            f"context of {info.context_tokens}",
            next_step="lower --tokens or --prompt-tokens",
        )
    vocabulary = max(min(info.vocabulary or SAFE_VOCABULARY, 30_000), FIRST_ID + 1)
    most = None
    if info.context_tokens is not None:
        # Made text has more tokens than words: leave it half of the room.
        room = info.context_tokens - tokens - CONTEXT_SPARE_TOKENS
        most = max(prompt_tokens, room if chosen == "ids" else room // 2)
    return PromptMaker(seed, chosen, prompt_tokens, vocabulary, tuple(own), most)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Return the prompts of a JSONL file: a string, or an object with prompt, text, messages or input_ids.

    Raises:
        UsageError: with the number of the line that is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"the prompts file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompts file {path} is not UTF-8 at byte {error.start}") from error
    prompts: list[Prompt] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            reason = getattr(error, "msg", str(error)).lower()
            raise UsageError(
                f"{path}, line {number}: not JSON ({reason})",
                next_step='each line is one JSON string or object, for example {"prompt": "hello"}',
            ) from error
        prompts.append(Prompt(f"line{number}", _content(value, path, number)))
    if not prompts:
        raise UsageError(f"the prompts file {path} holds no prompt")
    return tuple(prompts)


def _content(value: Any, path: Path, number: int) -> str | tuple[Any, ...]:
    if isinstance(value, dict):
        for key in ("input_ids", "messages", "prompt", "text"):
            if key in value:
                value = value[key]
                break
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value:
        if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            return tuple(value)
        if all(isinstance(item, dict) and "role" in item for item in value):
            return tuple(value)
    raise UsageError(
        f"{path}, line {number}: no prompt in it",
        next_step="give a string, or an object with prompt, text, messages or input_ids",
    )


def request_body(
    info: ServerInfo, prompt: Prompt, tokens: int, *, temperature: float = 0.0
) -> bytes:
    """Return the JSON body of one streaming request."""
    if info.api == "generate":
        return json.dumps(_generate_body(prompt, tokens, temperature)).encode()
    body: dict[str, Any] = {
        "model": info.model or "default",
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "temperature": temperature,
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    if info.kind == "sglang":
        body["return_spec_tokens_details"] = True
    content = prompt.content
    if info.api == "chat":
        body["messages"] = (
            [{"role": "user", "content": content}] if isinstance(content, str) else list(content)
        )
    elif isinstance(content, str):
        body["prompt"] = content
    elif prompt.is_ids:
        body["prompt"] = list(content)
    else:
        raise UsageError(
            "the prompts file holds chat messages, which need the chat route",
            next_step="use --api chat",
        )
    if prompt.shape == "constrained":
        body["response_format"] = {"type": "json_object"}
        body["ignore_eos"] = False
    return json.dumps(body).encode()


def _generate_body(prompt: Prompt, tokens: int, temperature: float) -> dict[str, Any]:
    content = prompt.content
    sampling: dict[str, Any] = {
        "temperature": temperature,
        "max_new_tokens": tokens,
        "ignore_eos": True,
    }
    if prompt.shape == "constrained":
        sampling["json_schema"] = '{"type":"object","properties":{"name":{"type":"string"}}}'
        sampling["ignore_eos"] = False
    body: dict[str, Any] = {"stream": True, "sampling_params": sampling}
    if isinstance(content, str):
        body["text"] = content
    elif prompt.is_ids:
        body["input_ids"] = list(content)
    else:
        raise UsageError(
            "the prompts file holds chat messages, which need the chat route",
            next_step="use --api chat",
        )
    return body
