"""The validated copy of a site file: the same site without pydantic, and never one that was not validated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from opsctl import site, site_cache, validated
from opsctl.errors import ConfigError, UsageError
from opsctl.session import transport_entry
from opsctl.site_cache import StoredSite, load_site

TEXT = """\
hosts:
  pve1: {ssh: root@192.0.2.6, become: sudo, identity_file: ~/.ssh/id, connect_timeout_s: 3,
         proxmox: {api: "https://pve1:8006", token_id: "ops@pam!o", token: {env: TOKEN}}}
  ct129: {pct: 129, via: pve1}
  here: {local: true}
servers:
  glm5:
    host: ct129
    gpus: {host: pve1, select: [0, "GPU-1"], expect: 2}
    python: /opt/sglang/bin/python
    model: /models/GLM
    args: {tp: 8, mem-fraction-static: 0.9, enable-metrics: true, list-of: [1, "two", null]}
    env: {is: "list", HF_TOKEN: {file: /run/token}}
    speculation: {disable_above: 5}
    smoke: {levels: [1, 2], prompts: prompts.jsonl}
    stop: {grace_s: 7}
  other: {host: here, port: 8000, command: [/usr/bin/my-server]}
defaults:
  stop: {grace_s: 9}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "opsctl.yaml"
    path.write_text(TEXT)
    return path


def the_copy(cache: Path) -> Path:
    (copy,) = (cache / "opsctl" / "site").iterdir()
    return copy


def is_copy(made: Any) -> bool:
    return isinstance(made, StoredSite)


def same(model: Any, stored: Any) -> None:
    """Compare a model with what was restored of it, field by field."""
    if isinstance(model, BaseModel):
        assert not isinstance(stored, BaseModel)
        assert stored.model_fields_set == model.model_fields_set
        for name, value in model:
            same(value, getattr(stored, name))
    elif isinstance(model, dict):
        assert list(model) == list(stored)
        for key, value in model.items():
            same(value, stored[key])
    else:
        assert (type(stored), stored) == (type(model), model)


def test_the_copy_has_all_that_was_validated(file: Path) -> None:
    """Every field of every entry, with its type, its defaults applied, and what was given apart."""
    first, second = load_site(file), load_site(file)

    assert (is_copy(first), is_copy(second)) == (False, True)
    same(first, second)
    assert second.path == file
    assert second.gpu_host_of("glm5") == "pve1"
    assert second.servers["other"].stop.grace_s == 9
    assert transport_entry(second.hosts["pve1"]) == transport_entry(first.hosts["pve1"])
    with pytest.raises(UsageError, match="no server 'glm'") as caught:
        second.server("glm")
    assert "did you mean 'glm5'?" in (caught.value.next_step or "")


def test_a_known_file_needs_no_pydantic(file: Path) -> None:
    """That is what the copy is for: a third of a stop's start."""
    code = (
        "import sys, opsctl.session; from pathlib import Path; from opsctl.site_cache import load_site; "
        f"load_site(Path({str(file)!r})).server('glm5'); "
        "print(sorted({'pydantic', 'yaml'} & set(sys.modules)))"
    )
    said = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [one.stdout.strip() for one in said] == ["['pydantic', 'yaml']", "[]"]


def test_the_machine_without_a_site_file_has_a_copy_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zero configuration starts as fast; an empty file is something else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    load_site()
    made = load_site()

    assert is_copy(made)
    assert (made.path, transport_entry(made.host("here"))["local"]) == (None, True)
    (tmp_path / "empty.yaml").write_text("")
    assert load_site(tmp_path / "empty.yaml").hosts == {}


def test_an_edited_file_is_validated(file: Path) -> None:
    """One byte more, and the copy is of another file: mistakes are told as ever."""
    load_site(file)
    file.write_text(TEXT.replace("expect:", "expcet:"))
    with pytest.raises(ConfigError, match=r"opsctl\.yaml:9: unknown key .*did you mean 'expect'\?"):
        load_site(file)
    with pytest.raises(ConfigError, match="no such file"):
        load_site(file.with_name("gone.yaml"))


def test_what_reads_the_file_is_part_of_the_copy_s_name(
    file: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of opsctl, or changed models, validate anew."""
    load_site(file)
    monkeypatch.setattr(validated, "__version__", "0.0.1")
    assert not is_copy(load_site(file))
    monkeypatch.setattr(site_cache, "READERS", ("site.py", "errors.py"))
    assert not is_copy(load_site(file))


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o602])
def test_a_copy_that_others_can_reach_is_not_trusted(
    file: Path, own_cache: Path, mode: int
) -> None:
    """It decides which machines are touched, and what is launched there."""
    load_site(file)
    copy = the_copy(own_cache)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert copy.parent.stat().st_mode & 0o777 == 0o700
    copy.chmod(mode)
    assert not is_copy(load_site(file))
    assert is_copy(load_site(file)), "the next one has a copy of our own again"


def test_another_s_copy_is_not_trusted(
    file: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with sudo -E, where the home is a user's and the user is root."""
    load_site(file)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert not is_copy(load_site(file))


def test_a_link_in_its_place_is_not_followed(file: Path, own_cache: Path) -> None:
    """Not even to a file that would do."""
    load_site(file)
    copy = the_copy(own_cache)
    copy.rename(own_cache / "elsewhere")
    copy.symlink_to(own_cache / "elsewhere")
    assert not is_copy(load_site(file))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b"7", b'["Site", {"hosts": 3}]', b'["map", {}]', b'["Site"]'],
)
def test_a_damaged_copy_is_made_anew(file: Path, own_cache: Path, content: bytes) -> None:
    """A disk that was full, a crash in the middle: nobody is bothered with it."""
    load_site(file)
    the_copy(own_cache).write_bytes(content)
    assert load_site(file).server("glm5").port == 30000
    assert is_copy(load_site(file))


def test_what_json_cannot_carry_is_validated_each_time(file: Path, own_cache: Path) -> None:
    """YAML knows dates; a copy that would make a text of one is not kept."""
    file.write_text(TEXT.replace("tp: 8", "tp: 2026-11-29"))
    for _ in range(2):
        made = load_site(file)
        assert not is_copy(made)
        assert type(made.servers["glm5"].args["tp"]).__name__ == "date"
    assert list(own_cache.rglob("*.json*")) == []


def test_a_place_that_takes_no_copy_is_no_problem(file: Path, own_cache: Path) -> None:
    """A read-only home, a full disk: the site is read as if there were no copies."""
    (own_cache / "opsctl").write_text("a file where the folder should be")
    assert load_site(file).server("glm5").port == 30000


def test_only_a_few_copies_are_kept(file: Path, own_cache: Path) -> None:
    """Each edit makes one; the oldest go."""
    for number in range(validated.KEPT + 3):
        file.write_text(f"{TEXT}# {number}\n")
        load_site(file)
    assert len(list((own_cache / "opsctl" / "site").iterdir())) == validated.KEPT
    assert is_copy(load_site(file))


def test_a_restored_secret_is_read_when_it_is_used(
    file: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy holds the reference; the secret comes from where it points to, or its absence is told."""
    monkeypatch.setenv("TOKEN", "s3cret")
    load_site(file)
    proxmox = load_site(file).hosts["pve1"].proxmox
    assert proxmox is not None
    assert proxmox.token is not None

    assert proxmox.token.resolve() == "s3cret"
    assert b"s3cret" not in the_copy(own_cache).read_bytes()
    monkeypatch.delenv("TOKEN")
    with pytest.raises(ConfigError, match="TOKEN is not set"):
        proxmox.token.resolve()


def test_a_restored_site_cannot_be_changed(file: Path) -> None:
    """As the models: what was validated stays as it was."""
    load_site(file)
    made: Any = load_site(file)
    with pytest.raises(AttributeError):
        made.servers["glm5"].port = 1
    with pytest.raises(AttributeError):
        del made.hosts
    assert not hasattr(made.servers["glm5"], "prot")


def test_a_restored_site_is_copied_as_a_model_is(file: Path) -> None:
    """With other entries in it: the original stays, and the copy knows its file."""
    model = load_site(file)
    stored = load_site(file)
    servers = {"mine": stored.servers["other"]}
    for site_ in (model, stored):
        made = site_.model_copy(update={"servers": servers})
        assert list(made.servers) == ["mine"]
        assert (made.path, made.model_fields_set) == (file, {"hosts", "servers", "defaults"})
        assert "glm5" in site_.servers


def test_validating_is_still_there_for_who_asks_about_the_file(file: Path) -> None:
    """`opsctl config` shows the models themselves."""
    load_site(file)
    assert isinstance(site.load_site(file), BaseModel)
