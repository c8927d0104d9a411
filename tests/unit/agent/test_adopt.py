"""The far side of an adoption: secrets stay on the host."""

from __future__ import annotations

import json
import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.agent.ops import adopt, procfs
from opsctl.domain.adopt import KEPT_NAMES, KEPT_PREFIXES, SECRET_NAME, SECRET_VALUE

REQUEST = {
    "keep": KEPT_PREFIXES,
    "names": KEPT_NAMES,
    "secret_name": SECRET_NAME,
    "secret_value": SECRET_VALUE,
}
CONTEXT: Any = SimpleNamespace(
    cancelled=threading.Event(), Error=lambda kind, detail: RuntimeError(f"{kind}: {detail}")
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "x"),
        ("HUGGING_FACE_HUB_TOKEN", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AWS_ACCESS_KEY_ID", "x"),
        ("SGLANG_API_KEY", "x"),
        ("SGLANG_ADMIN_PASSWORD", "x"),
        ("HF_ENDPOINT", "https://me:hunter2@mirror.example"),
        ("HTTPS_PROXY", "http://user:pw@proxy:3128"),
        ("SGLANG_NOTE", "use hf_abcdefghijklmnopqrstuv"),
        ("SGLANG_X", "eyJhbGciOiJI.eyJzdWIiOiIx.sig"),
    ],
)
def test_values_of_secrets_are_never_told(name: str, value: str) -> None:
    """By its name or by its looks: the name travels, the value does not."""
    told = adopt.sift({name: value}, REQUEST)

    assert told == {"env": {}, "secrets": [name], "other_secrets": []}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SGLANG_ENABLE_SPEC_V2", "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION", "4096"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
        ("NCCL_SOCKET_IFNAME", "eth0"),
        ("HF_ENDPOINT", "https://mirror.example:8443/a@b"),
        ("LD_LIBRARY_PATH", "/usr/local/cuda/lib64"),
    ],
)
def test_what_the_server_needs_is_told(name: str, value: str) -> None:
    """Settings of SGLang, CUDA and NCCL are taken over as they are."""
    assert adopt.sift({name: value}, REQUEST)["env"] == {name: value}


def test_the_rest_is_not_told_at_all() -> None:
    """A login's variables stay; a secret among them is named, so that nothing is lost unseen."""
    told = adopt.sift({"HOME": "/root", "MAIL": "x", "MY_API_KEY": "y", "SSH_CLIENT": "z"}, REQUEST)

    assert told == {"env": {}, "secrets": [], "other_secrets": ["MY_API_KEY"]}


def test_one_process_is_read_and_another_under_its_number_is_not() -> None:
    """The start time is compared after reading: what was read belongs to the process that was asked for."""
    pid = os.getpid()
    ticks = procfs.start_ticks(pid)

    told = adopt.read({**REQUEST, "pid": pid, "start_ticks": ticks}, CONTEXT)
    with pytest.raises(RuntimeError, match="process-gone"):
        adopt.read({**REQUEST, "pid": pid, "start_ticks": 1}, CONTEXT)

    assert os.path.realpath(told["interpreter"]) == os.path.realpath(sys.executable)
    assert told["cwd"] == os.getcwd()
    json.dumps(told)


def test_the_interpreter_keeps_the_link_of_its_virtual_environment(tmp_path: Any) -> None:
    """/opt/sglang/bin/python is a link to the system's Python; launched by that, sglang would be missing."""
    real = os.path.realpath(sys.executable)
    link = tmp_path / "bin" / "python"
    link.parent.mkdir()
    link.symlink_to(real)

    assert adopt.interpreter([str(link)], real, "/", None) == str(link)
    assert adopt.interpreter(["bin/python"], real, str(tmp_path), None) == str(link)
    assert adopt.interpreter(["python"], real, "/", f"/nowhere:{link.parent}") == str(link)
    assert adopt.interpreter(["elsewhere/python"], real, "/", None) == real
