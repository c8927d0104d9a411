"""The arithmetic that the incident's operators did by hand at 3 a.m."""

from __future__ import annotations

import pytest

from opsctl.domain.crash.model import Launch, Sizes
from opsctl.domain.crash.sizes import explain_sizes, read_sizes


def explained(text: str, launch: Launch | None = None, **known: object) -> Sizes:
    sizes = read_sizes(text)
    assert sizes is not None
    return explain_sizes(sizes, launch or Launch(), **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "a", "b"),
    [
        ("The size of tensor a (160) must match the size of tensor b (10)", 160, 10),
        ("Expected size 6 but got size 8 for tensor number 1 in the list.", 6, 8),
        ("Size mismatch for shape#0('num_tokens'): expected 6 but got 4", 6, 4),
        ("FA3 draft-decode page_table: used 256001 > capacity 256000", 256001, 256000),
        ("output with shape [48, 99] doesn't match the broadcast shape [64, 99]", 48, 64),
        ("value tensor of shape [33] cannot be broadcast to indexing result of shape [32]", 33, 32),
        ("q.shape[0] (132) does not match qo_indptr[-1] (128)", 132, 128),
        ("could not broadcast input array from shape (256,) into shape (76,)", 256, 76),
        ("expanded size of the tensor (1024) must match the existing size (4096) at", 1024, 4096),
        ("shape '[5, -1, 32]' is invalid for input of size 256", None, 256),
    ],
)  # fmt: skip
def test_both_sizes_are_read_in_every_wording(text: str, a: int | None, b: int) -> None:
    """Rule 12 and 13: one extractor for all wordings."""
    sizes = read_sizes(text)

    assert sizes is not None
    assert (sizes.a, sizes.b) == (a, b)


def test_requests_times_draft_tokens_is_spelled_out() -> None:
    """160 against 10 with 16 draft tokens: ten requests met rows for ten times sixteen."""
    sizes = explained(
        "size of tensor a (160) must match the size of tensor b (10)",
        Launch(draft_tokens=16, threshold=5),
    )

    assert sizes.kind == "draft-rows"
    assert (sizes.requests, sizes.draft_tokens, sizes.is_load) == (10, 16, True)
    assert "160 = 10 requests x 16 draft tokens; 10 = 10 requests x 1" in sizes.meanings
    assert any("above the speculation threshold 5" in meaning for meaning in sizes.meanings)


def test_both_quotients_are_printed_when_both_divide() -> None:
    """64 against 48 with 16 draft tokens are batches of 4 and 3."""
    sizes = explained(
        "size of tensor a (64) must match the size of tensor b (48)", Launch(draft_tokens=16)
    )

    assert any("64 = 4 x 16 and 48 = 3 x 16" in meaning for meaning in sizes.meanings)


def test_without_launch_facts_the_ratio_is_named_as_a_guess() -> None:
    """The ratio is offered, not claimed."""
    sizes = explained("size of tensor a (160) must match the size of tensor b (10)")

    assert sizes.requests == 10
    assert sizes.draft_tokens is None
    assert "if it is 16" in sizes.meanings[0]


def test_cpu_wording_of_the_incident_names_the_batch() -> None:
    """Without CUDA graphs the same fault is a view that does not fit."""
    sizes = explained(
        "shape '[5, -1, 32]' is invalid for input of size 256", Launch(draft_tokens=4, threshold=2)
    )

    assert (sizes.kind, sizes.requests, sizes.is_load) == ("draft-rows", 5, True)
    assert any("256 = 8 x 32" in meaning for meaning in sizes.meanings)
    assert any("8 = 2 requests x 4 draft tokens" in meaning for meaning in sizes.meanings)


def test_largest_graph_plus_one_is_named() -> None:
    """A batch of 9 with graphs up to 8."""
    sizes = explained(
        "size of tensor a (8) must match the size of tensor b (9)", Launch(graph_sizes=(1, 2, 4, 8))
    )

    assert sizes.kind == "graph-plus-one"
    assert "largest captured graph + 1" in sizes.meanings[0]


@pytest.mark.parametrize("length", [90000, None])
def test_context_edge_is_not_load(length: int | None) -> None:
    """Sizes that differ by little at the context length are a matter of length."""
    sizes = explained(
        "size of tensor a (90006) must match the size of tensor b (90007)",
        Launch(context_length=length, draft_tokens=8),
    )

    assert (sizes.kind, sizes.is_load) == ("context-edge", False)


def test_small_neighbours_are_no_context_edge() -> None:
    """8 and 9 are batch sizes, not lengths."""
    assert (
        explained("size of tensor a (8) must match the size of tensor b (9)").kind != "context-edge"
    )


def test_vocabularies_are_told_apart_from_load() -> None:
    """Two vocabulary sizes mean that draft and target do not fit."""
    sizes = explained("size of tensor a (151936) must match the size of tensor b (152064)")

    assert (sizes.kind, sizes.is_load) == ("vocabulary", False)


def test_hidden_sizes_in_merge_batch_need_two_requests() -> None:
    """Level 1 proves nothing when merge_batch is in the stack."""
    sizes = explained(
        "Expected size 4096 but got size 2048 for tensor number 1",
        frames=("eagle_info.py:merge_batch",),
        level=1,
    )

    assert sizes.kind == "hidden-size"
    assert any("at least two requests" in meaning for meaning in sizes.meanings)
    assert not any("one request in flight" in meaning for meaning in sizes.meanings)


def test_shard_of_tensor_parallel_is_offered() -> None:
    """A ratio equal to tp can be a shard."""
    sizes = explained("size of tensor a (1280) must match the size of tensor b (160)", Launch(tp=8))

    assert any("160 x tp 8" in meaning for meaning in sizes.meanings)


def test_failure_at_level_one_is_not_load() -> None:
    """Whatever the sizes say, one request is no load."""
    sizes = explained(
        "size of tensor a (16) must match the size of tensor b (1)",
        Launch(draft_tokens=16),
        level=1,
    )

    assert sizes.is_load is False


def test_settings_of_the_speculation_are_named() -> None:
    """6 = steps 5 + 1, 8 = draft tokens: configuration."""
    sizes = explained(
        "Expected size 6 but got size 8 for tensor number 1",
        Launch(draft_tokens=8, draft_steps=5, topk=4),
    )

    assert sizes.kind == "draft-settings"
    assert "6 = steps 5 + 1, 8 = draft tokens 8" in sizes.meanings[-1]
