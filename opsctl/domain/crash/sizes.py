"""The arithmetic of a shape mismatch: which two sizes disagree, and what each is made of."""

from __future__ import annotations

import math
import re

from opsctl.domain.crash.model import Launch, Sizes

_LIST = r"[\[(]([-\d,\s]*)[\])]"
_PAIRS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("tensor a/b", r"size of tensor a \((-?\d+)\) must match the size of tensor b \((-?\d+)\)"),
        ("expected/got", r"expected (?:size|shape|length|dim\w*)?\s*\(?(\d+)\)?,? (?:but )?(?:got|found)"
                         r"(?: size| shape| length)? \(?(\d+)\b(?!\.\d)"),
        ("used/capacity", r"used (\d+) ?> ?capacity (\d+)"),
        ("source/target", r"expanded size of the tensor \((\d+)\) must match the existing size \((\d+)\)"),
        ("match", r"\((\d+)\) (?:does not|doesn't|must|should) (?:match|equal)\b[^()]*\((\d+)\)"),
        ("batch1/batch2", r"expected input batch_size \((\d+)\) to match target batch_size \((\d+)\)"),
        ("split sizes", r"sum exactly to (\d+) .{0,80}split_sizes=\[(\d+)"),
        ("narrow", r"start \((\d+)\) \+ length \((\d+)\) exceeds dimension size \((\d+)\)"),
        ("index/self", r"Expected index \[(\d+)[^\]]*\] to be (?:smaller|no larger) than self \[(\d+)"),
        ("length", r"(?:length|size|numel|len)\D{0,30}?(\d+) (?:does not|doesn't|must|!=|vs\.?|is not equal to)"
                   r"\D{0,60}?(\d+)"),
        ("mismatches", r"size (\d+)\s+mismatch(?:es|ed)? \D{0,80}(\d+)"),
        ("previously seen", r"has size (\d+) for operand \d+ which does not broadcast with previously seen size (\d+)"),
        ("vs", r"\b(\d+) vs\.? (\d+)\b"),
        ("assert named", r"\b[a-z_]+ (\d+) ?(?:!=|>|<) ?[a-z_]+ (\d+)\b"),
        ("over capacity", r"\b(\d+) exceeds (?:\w+ ){0,4}capacity (\d+)"),
        ("slice shapes", r"Destination slice shape: (\d+) .*source slice shape: (\d+)"),
        ("assert", r"\b(\d+) (?:!=|<=|>=|==|<|>) (\d+)\b"),
    )
)  # fmt: skip
_SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("view", rf"shape '?{_LIST}'? is invalid for input of size (\d+)"),
        ("broadcast shape", rf"output with shape {_LIST} doesn't match the broadcast shape {_LIST}"),
        ("value tensor", rf"tensor of shape {_LIST} cannot be broadcast to .{{0,60}}?{_LIST}"),
        ("broadcast", rf"shapes? {_LIST}(?: and|,)? ?{_LIST}.{{0,40}}(?:broadcast|mismatch|not compatible)"),
        ("broadcast", rf"(?:broadcast|mismatch)\w*:? .{{0,80}}?{_LIST}.{{0,40}}?{_LIST}"),
        ("target sizes", rf"target sizes: {_LIST}\.?\s+tensor sizes: {_LIST}"),
        ("matmul", r"\((\d+x\d+) and (\d+x\d+)\)"),
        ("expected/got shape", rf"expected.{{0,60}}?{_LIST}.{{0,40}}?(?:got|but|found).{{0,30}}?{_LIST}"),
        ("resized", rf"had shape {_LIST}, which does not match the required output shape {_LIST}"),
        ("weight", rf"load weight \(torch\.Size\({_LIST}\)\) into parameter \(torch\.Size\({_LIST}\)\)"),
        ("mask", rf"shape of the mask {_LIST} .{{0,60}}indexed tensor {_LIST}"),
        ("shape pair", rf"{_LIST}\)? (?:vs\.?|!=|and) (?:[\w.]+ )?(?:torch\.Size\()?{_LIST}"),
    )
)  # fmt: skip

# Sizes that models really have; a pair of them is a fault of the model pair, not of load.
_VOCABULARIES = frozenset(
    {32000, 32064, 32768, 49152, 50257, 50304, 64000, 100352, 102400, 128000, 128256, 128512, 129280,
     131072, 151552, 151643, 151646, 151936, 152064, 154880, 156992, 157184, 163840, 200064, 201088,
     202048, 248320, 256000, 262144, 262208}
)  # fmt: skip
_HIDDEN = frozenset(
    {768, 896, 1024, 1152, 1536, 1792, 2048, 2304, 2560, 2880, 3072, 3584, 4096, 4608, 5120, 5376, 6144,
     6656, 7168, 8192, 9216, 10240, 12288, 14336, 16384, 18432}
)  # fmt: skip
_FEW_ROWS = 4096
"""Above this a size is a length, a width or a vocabulary: more rows than a decode batch has."""


def read_sizes(text: str) -> Sizes | None:
    """Return the two sizes that a message names, or None when it names none."""
    for name, pattern in _SHAPES:
        if (found := pattern.search(text)) is not None:
            left, right = _ints(found[1]), _ints(found[2])
            if not left or not right:
                continue
            a, b = (None, right[0]) if name == "view" else _first_difference(left, right)
            return Sizes(name, a, b, shapes=(left, right))
    for name, pattern in _PAIRS:
        if (found := pattern.search(text)) is not None:
            *first, last = (int(part) for part in found.groups())
            return Sizes(name, sum(first), last)  # a narrow's start and length reach to their sum
    return None


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"-?\d+", text))


def _first_difference(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, int]:
    for a, b in zip(left, right, strict=False):
        if a != b:
            return a, b
    return left[0], right[0]


def explain_sizes(
    sizes: Sizes, launch: Launch, *, frames: tuple[str, ...] = (), level: int | None = None
) -> Sizes:
    """Return the sizes with what they are made of.

    Args:
        sizes: as read from the message.
        launch: facts of the launch, as far as known.
        frames: "module.py:function" of the stack, innermost last.
        level: concurrency at which it failed; 1 means that load is not the cause.
    """
    merge = any("merge_batch" in frame for frame in frames)
    if sizes.wording == "view":
        made = _explain_view(sizes, launch)
    else:
        made = _explain_pair(sizes, launch, merge=merge, speculative=_speculates(launch, frames))
    kind, meanings, requests, is_load, draft = made
    if merge:
        meanings = (*meanings, "merge_batch is in the stack: it needs at least two requests at once, so "
                    "a single request or level 1 proves nothing")  # fmt: skip
        is_load = False
    if level == 1 and not merge:
        meanings = (*meanings, "it failed with one request in flight: load is not the cause")
        is_load = False
    if not meanings:
        meanings = (f"{sizes.a} and {sizes.b}: no relation to the known launch facts",)
    return Sizes(
        sizes.wording, sizes.a, sizes.b, sizes.shapes, kind, meanings, requests, draft, is_load
    )


_Made = tuple[str, tuple[str, ...], int | None, bool | None, int | None]


def _speculates(launch: Launch, frames: tuple[str, ...]) -> bool:
    words = ("eagle", "spec", "verify", "draft", "mtp", "ngram")
    return launch.draft_tokens is not None or any(
        word in frame.lower() for frame in frames for word in words
    )


def _explain_view(sizes: Sizes, launch: Launch) -> _Made:
    """A view: ``shape '[5, -1, 32]' is invalid for input of size 256``."""
    wanted, total = sizes.shapes[0], sizes.shapes[1][0]
    known = [size for size in wanted if size > 0]
    tail = math.prod(known[1:]) if len(known) > 1 else 1
    if len(known) < 2 or tail <= 0 or total % tail:
        return "view", (f"{total} elements cannot be laid out as {list(wanted)}",), None, None, None
    batch, rows = known[0], total // tail
    text = (
        f"a batch of {batch} requests met {rows} rows of {tail} elements ({total} = {rows} x {tail}); "
        f"{rows} does not divide by {batch}"
    )
    meanings = [text]
    draft = launch.draft_tokens
    if draft and draft > 1 and rows % draft == 0:
        meanings.append(f"{rows} = {rows // draft} requests x {draft} draft tokens")
        return "draft-rows", tuple(meanings), batch, True, draft
    if launch.threshold is not None and batch > launch.threshold:
        meanings.append(f"{batch} is above the speculation threshold {launch.threshold}")
    return "batch-rows", tuple(meanings), batch, True, draft


def _explain_pair(sizes: Sizes, launch: Launch, *, merge: bool, speculative: bool) -> _Made:
    a, b = sizes.a, sizes.b
    if a is None or b is None:
        return "unexplained", (), None, None, None
    if a == b:
        return (
            "unexplained",
            (f"both sizes are {a}: the message does not name what differs",),
            None,
            None,
            None,
        )
    for explain in (_context_edge, _model_pair):
        made = explain(sizes, launch, merge)
        if made is not None:
            return made
    meanings: list[str] = []
    kind, requests, is_load, draft = "unexplained", None, None, launch.draft_tokens
    rows = _draft_rows(a, b, launch, speculative)
    if rows is not None:
        kind, is_load = "draft-rows", True
        requests, draft, words = rows
        meanings += words
    shard = _shard(a, b, launch)
    if shard is not None:
        meanings.append(shard)
        if kind == "unexplained":
            kind, is_load = "tp-shard", False
    graph = _graph_edge(a, b, launch)
    if graph is not None:
        meanings.append(graph)
        if kind == "unexplained":
            kind, is_load, requests = "graph-plus-one", True, max(a, b)
    steps = _draft_settings(a, b, launch)
    if steps is None and not meanings and launch.draft_steps is None and max(a, b) <= 64:
        steps = f"{a} and {b} are as small as settings: compare them with steps + 1, topk and draft tokens"
    if steps is not None:
        meanings.append(steps)
        if kind == "unexplained":
            kind = "draft-settings"
    if launch.threshold is not None and requests is not None and requests > launch.threshold:
        meanings.append(
            f"{requests} requests are above the speculation threshold {launch.threshold}"
        )
    return kind, tuple(meanings), requests, is_load, draft


def _context_edge(sizes: Sizes, launch: Launch, _merge: bool) -> _Made | None:
    assert sizes.a is not None
    assert sizes.b is not None
    low, high = sorted((sizes.a, sizes.b))
    slack = (launch.draft_tokens or 12) + 4
    length = launch.context_length
    near = length is not None and abs(high - length) <= max(64, slack)
    if high - low > slack or not (near or (length is None and low > _FEW_ROWS)):
        return None
    if low == high or (not near and {low, high} <= (_VOCABULARIES | _HIDDEN)):
        return None
    where = f"context length {length}" if near else "what looks like the context length"
    text = (
        f"{sizes.a} and {sizes.b} differ by {high - low} at {where}: a request reached the edge of its "
        "context, load is not the cause"
    )
    return "context-edge", (text,), None, False, launch.draft_tokens


def _model_pair(sizes: Sizes, launch: Launch, merge: bool) -> _Made | None:
    a, b = sizes.a, sizes.b
    assert a is not None
    assert b is not None
    pair = {a, b}
    if a == b:
        return None
    if max(a, b) >= 30_000 and min(a, b) > 1_000 and (pair & _VOCABULARIES):
        text = f"{a} and {b} look like vocabulary sizes: draft and target model do not fit"
        tp = launch.tp or 0
        if tp > 1 and max(a, b) == min(a, b) * tp:
            text = f"{max(a, b)} = {min(a, b)} x tp {tp}: one side holds a shard of the vocabulary"
            return "tp-shard", (text,), None, False, launch.draft_tokens
        return "vocabulary", (text,), None, False, launch.draft_tokens
    if pair <= _HIDDEN and (merge or min(a, b) >= 1024):
        text = f"{a} and {b} look like the hidden sizes of two models (target and draft)"
        return "hidden-size", (text,), None, False, launch.draft_tokens
    return None


def _draft_rows(
    a: int, b: int, launch: Launch, speculative: bool
) -> tuple[int, int | None, list[str]] | None:
    """A = requests x draft tokens, with the launch's number or, without it, the ratio of the sizes."""
    draft = launch.draft_tokens
    low, high = sorted((a, b))
    if high > 65536 or low < 1 or low == high:
        return None
    if draft and draft > 1:
        if high % draft == 0 and low == high // draft:
            return (
                low,
                draft,
                [f"{high} = {low} requests x {draft} draft tokens; {low} = {low} requests x 1"],
            )
        if high % draft == 0 and low % draft == 0:
            text = (f"{a} = {a // draft} x {draft} and {b} = {b // draft} x {draft} draft tokens: "
                    f"batches of {a // draft} and {b // draft} requests")  # fmt: skip
            return high // draft, draft, [text]
        if high % draft == 0 and high > draft:
            text = f"{high} = {high // draft} requests x {draft} draft tokens; {low} does not divide by {draft}"
            return high // draft, draft, [text]
        return None
    if high % low == 0 and 2 <= high // low <= 64 and low < 1024 and (speculative or low > 1):
        ratio = high // low
        text = f"{high} = {low} x {ratio}: {low} requests x {ratio} rows each (draft tokens, if it is {ratio})"
        return low, None, [text]
    return None


def _shard(a: int, b: int, launch: Launch) -> str | None:
    low, high = sorted((a, b))
    if launch.tp and launch.tp > 1 and low * launch.tp == high:
        return f"{high} = {low} x tp {launch.tp}: one side may be a shard, the other the whole"
    return None


def _graph_edge(a: int, b: int, launch: Launch) -> str | None:
    graphs = launch.graph_sizes
    if not graphs:
        return None
    low, high = sorted((a, b))
    top = max(graphs)
    draft = launch.draft_tokens or 1
    if low == top and high > top:
        extra = (
            "largest captured graph + 1" if high == top + 1 else "above the largest captured graph"
        )
        return f"{high} = {extra} ({top}): a larger batch should have run without a graph"
    if draft > 1 and low == top * draft and high > low:
        return f"{low} = largest captured graph {top} x {draft} draft tokens: {high} is above it"
    if high in graphs and low not in graphs and low < high:
        return f"{high} is a captured graph size: the batch of {low} was padded to it"
    return None


def _draft_settings(a: int, b: int, launch: Launch) -> str | None:
    names = {
        launch.draft_tokens: f"draft tokens {launch.draft_tokens}",
        (launch.draft_steps or 0) + 1: f"steps {launch.draft_steps} + 1",
        launch.draft_steps: f"steps {launch.draft_steps}",
    }
    if launch.topk and launch.topk > 1:
        names[launch.topk] = f"topk {launch.topk}"
    names.pop(None, None)
    if launch.draft_steps is None:
        names.pop(1, None)
    if a in names and b in names and a != b:
        return f"{a} = {names[a]}, {b} = {names[b]}: settings of the speculation, not load"
    return None
