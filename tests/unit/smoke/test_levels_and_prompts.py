"""Which levels are driven, and what is sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.errors import UsageError
from opsctl.sglang.info import ServerInfo
from opsctl.sglang.metrics import parse_metrics, running_of_loads
from opsctl.smoke.levels import PROFILES, derive_levels, parse_levels, way_down
from opsctl.smoke.prompts import Prompt, make_prompts, read_prompts, request_body


def test_levels_are_derived_from_the_server() -> None:
    """Rule 10: graph sizes near the end, largest + 1, threshold and + 1, max running and + 1."""
    info = ServerInfo("generate", max_running=48, graph_sizes=(1, 2, 4, 8, 24, 32))

    levels = derive_levels(info, PROFILES["full"], threshold=5)

    assert {24, 32, 33, 5, 6, 48, 49} <= set(levels)
    assert levels == tuple(sorted(levels))
    assert max(levels) == 49


def test_quick_run_without_levels_stays_low() -> None:
    """A server that takes 4096 requests is not climbed to the top by a quick look."""
    info = ServerInfo("generate", max_running=4096)

    assert max(derive_levels(info, PROFILES["quick"], None)) == 64


def test_unknown_server_gets_the_incident_levels() -> None:
    """Nothing known: 1, 2, 5, 10."""
    assert derive_levels(ServerInfo("chat"), PROFILES["quick"], None) == (1, 2, 5, 10)


@pytest.mark.parametrize(
    ("profile", "concurrency", "wanted", "requests"),
    [
        ("quick", 10, None, 30),
        ("full", 1, None, 200),
        ("full", 100, None, 300),
        ("quick", 10, 4, 10),
    ],
)
def test_level_is_never_shorter_than_its_slots(
    profile: str, concurrency: int, wanted: int | None, requests: int
) -> None:
    """Rule 11: full levels have 200 requests; every slot gets one at least."""
    assert PROFILES[profile].requests(concurrency, wanted) == requests


def test_way_down_leaves_the_top_out() -> None:
    """The top was just driven."""
    assert way_down((1, 2, 5)) == (2, 1)
    assert parse_levels(" 1, 2 ,5") == (1, 2, 5)


def maker(**info: object) -> object:
    return make_prompts(
        ServerInfo("generate", **info),  # type: ignore[arg-type]
        seed=7,
        kind=None,
        prompt_tokens=64,
        tokens=32,
    )


def test_same_seed_sends_the_same_prompts() -> None:
    """Two runs with one seed are comparable; fresh prompts differ from each other."""
    one, two = maker(), maker()

    assert one.pool(0) == two.pool(0)  # type: ignore[attr-defined]
    assert one.pool(0) != one.pool(1)  # type: ignore[attr-defined]
    assert one.fresh("up5", 0) != one.fresh("up10", 0)  # type: ignore[attr-defined]


def test_server_without_tokenizer_gets_ids_inside_its_vocabulary() -> None:
    """Ids stay below the vocabulary and above the special tokens."""
    ids = maker(skip_tokenizer=True, vocabulary=100).pool(0).content  # type: ignore[attr-defined]

    assert len(ids) == 64
    assert all(3 <= token < 100 for token in ids)


def test_shared_prefix_is_shared() -> None:
    """Prompts of this shape begin alike and end differently."""
    made = maker(skip_tokenizer=True)
    one, two = (made.shaped("prefix", "x", i).content for i in (0, 1))  # type: ignore[attr-defined]

    assert one[:64] == two[:64]
    assert one[64:] != two[64:]


def test_request_that_cannot_fit_is_refused_before_it_is_sent() -> None:
    """A 400 of our own making is avoided."""
    with pytest.raises(UsageError, match="context of 90"):
        maker(context_tokens=90)


def test_long_prompts_stay_inside_the_context() -> None:
    """Eight times the usual length, or what the server's context leaves room for."""
    wide, narrow = maker(skip_tokenizer=True), maker(skip_tokenizer=True, context_tokens=200)

    assert len(wide.shaped("long", "x", 0).content) == 512  # type: ignore[attr-defined]
    assert len(narrow.shaped("long", "x", 0).content) == 152  # type: ignore[attr-defined]


def test_text_for_a_server_without_tokenizer_is_refused() -> None:
    """The server would answer 400."""
    info = ServerInfo("generate", skip_tokenizer=True)
    with pytest.raises(UsageError):
        make_prompts(info, seed=1, kind="text", prompt_tokens=8, tokens=8)


def test_bodies_of_the_three_routes() -> None:
    """Streaming, temperature 0, the wanted length, and the prompt in the route's own field."""
    prompt = Prompt("p", "hello")
    native = json.loads(request_body(ServerInfo("generate"), prompt, 5))
    chat = json.loads(request_body(ServerInfo("chat", model="m"), prompt, 5))
    plain = json.loads(request_body(ServerInfo("completions", model="m"), prompt, 5))

    assert native["text"] == "hello"
    assert native["sampling_params"]["max_new_tokens"] == 5
    assert chat["messages"][0]["content"] == "hello"
    assert plain["prompt"] == "hello"
    assert all(body["stream"] for body in (native, chat, plain))
    assert chat["stream_options"]["include_usage"]


def test_prompts_file_in_every_form(tmp_path: Path) -> None:
    """Strings, objects, ids, chats; blank lines are nothing."""
    path = tmp_path / "p.jsonl"
    path.write_text(
        '"one"\n\n{"prompt": "two"}\n{"input_ids": [5, 6]}\n'
        '{"messages": [{"role": "user", "content": "three"}]}\n'
    )

    contents = [prompt.content for prompt in read_prompts(path)]

    assert contents[:3] == ["one", "two", (5, 6)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"ok"\n{broken', "line 2: not JSON"),
        ('{"other": 1}', "line 1: no prompt"),
        ("[]", "line 1: no prompt"),
        ("", "holds no prompt"),
    ],
)
def test_broken_prompts_file_names_the_line(tmp_path: Path, text: str, words: str) -> None:
    """The sentence leads to the line."""
    path = tmp_path / "p.jsonl"
    path.write_text(text)

    with pytest.raises(UsageError, match=words):
        read_prompts(path)


@pytest.mark.parametrize(
    ("document", "running"),
    [
        ([{"dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 1}], 3),
        ({"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1}, {"num_running_reqs": 0}]}, 3),
        ({"internal_states": [{"num_running_reqs": 0}]}, 0),
        ({"model_path": "x"}, None),
        ([], None),
        (None, None),
    ],
)
def test_requests_in_flight_by_each_route(document: object, running: int | None) -> None:
    """/get_load, /v1/loads, /server_info: absent is not zero."""
    assert running_of_loads(document) == running


def test_metrics_are_joined_over_ranks() -> None:
    """Counts add up, usage is the highest, NaN and other names are left out."""
    text = (
        "# HELP x\n"
        'sglang:num_running_reqs{tp_rank="0"} 2.0\nsglang:num_running_reqs{tp_rank="1"} 3\n'
        'sglang:token_usage{tp_rank="0"} 0.5\nsglang:token_usage{tp_rank="1"} NaN\n'
        "python_gc 1\nbroken line\n"
    )

    assert parse_metrics(text) == {"running": 5.0, "token_usage": 0.5}
