"""The plan as a tired person reads it."""

from __future__ import annotations

from opsctl.domain.process import masked, shorten
from opsctl.domain.protection import Table
from opsctl.domain.selection import select
from opsctl.domain.stop_plan import plan_stop
from opsctl.domain.stop_words import plan_lines

from .tables import GPU0, GPU1, LAUNCH, hold, proc, server, system, title, view


def lines_of(*processes: object, kills: bool = False) -> str:
    table = system(*processes)  # type: ignore[arg-type]
    holders = [hold(GPU0, 4202, 87543 << 20), hold(GPU1, 6000, 2 << 30)]
    found = select(server(), table, {}, holders, view())
    plan = plan_stop(found, Table.of(table))
    return "\n".join(plan_lines(plan, kills=kills, grace_s=30.0))


def test_the_plan_names_pid_owner_memory_and_reason() -> None:
    """One line per process, and what is left alone with what that means."""
    text = lines_of(
        proc(4200, 1, LAUNCH),
        title(4202, 4200, "sglang::scheduler_TP0"),
        proc(6000, 1, "python3 train.py", uid=1001, user="ada"),
    )

    assert "to stop: 2 processes (TERM to the root, KILL after 30 s)" in text
    assert "87543" in text
    assert "command line: sglang on port 30000" in text
    assert "ada's: python3 train.py" in text or "foreign" in text
    assert "will not be proven free until they are gone" in text


def test_an_empty_plan_says_so() -> None:
    """Nothing to signal is said in words, not by an empty table."""
    assert "nothing to signal" in lines_of()


def test_a_hard_stop_says_that_it_kills() -> None:
    """The reader sees the difference before the question."""
    assert "KILL at once" in lines_of(proc(4200, 1, LAUNCH), kills=True)


def test_secrets_of_a_command_line_are_never_shown() -> None:
    """Keys and tokens of whoever started the server by hand stay out of screens and ledgers."""
    argv = ("python3", "--api-key", "sk-1", "--hf-token=abc", "--tokenizer-path", "/t", "--tp", "8")
    shown = masked(argv)

    assert shown == [
        "python3",
        "--api-key",
        "***",
        "--hf-token=***",
        "--tokenizer-path",
        "/t",
        "--tp",
        "8",
    ]
    assert "sk-1" not in shorten(argv, 400)


def test_a_secret_in_a_variable_of_a_command_line_is_hidden() -> None:
    """`env HF_TOKEN=... python`, `docker run -e API_KEY=...`; a path or a number beside it stays readable."""
    argv = (
        "env",
        "HF_TOKEN=abc",
        "MY_API_KEY=def",
        "CUDA_VISIBLE_DEVICES=0",
        "KEYBOARD=de",
        "tokens=9",
    )

    assert masked(argv)[1:] == [
        "HF_TOKEN=***",
        "MY_API_KEY=***",
        "CUDA_VISIBLE_DEVICES=0",
        "KEYBOARD=de",
        "tokens=9",
    ]


def test_an_abbreviated_flag_hides_its_secret_too() -> None:
    """argparse takes --api-k; a file's name beside it stays readable."""
    argv = ("python3", "--api-k", "sk-1", "--ssl-keyfile", "/k.pem", "--ssl-keyfile-p=abc")

    assert masked(argv)[1:] == ["--api-k", "***", "--ssl-keyfile", "/k.pem", "--ssl-keyfile-p=***"]


def test_a_stranger_s_words_move_no_cursor() -> None:
    """Escape codes in somebody's command line would rewrite what is above them."""
    said = shorten(("evil", "\x1b[2K\rnothing here", "caf\u00e9\udce9"))

    assert said == "evil \\x1b[2K\\rnothing here caf\u00e9\\udce9"


def test_long_command_lines_keep_both_ends() -> None:
    """The interpreter and the last options tell servers apart."""
    text = shorten(("python3", "x" * 200, "--port", "30000"), 60)
    assert len(text) == 60
    assert text.startswith("python3")
    assert text.endswith("--port 30000")
