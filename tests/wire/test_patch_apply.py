"""Replacing files of an installed package on a real file system: all or none, whatever happens."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import py_compile
import signal
import subprocess
import sys
import textwrap
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.agent.ops import patch, patch_record
from tests.wire import patch_site
from tests.wire.patch_site import FILES, Context, Refused, change, install, proof, request, snapshot

pytestmark = pytest.mark.wire


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return install(tmp_path / "site")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def run_python(root: Path, code: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(root.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.strip()


def test_apply_then_revert_restores_every_byte_and_mode(root: Path, state: Path) -> None:
    """Going there and back leaves the package as it was: bytes, modes, no folder or file of ours."""
    (root / "args.py").chmod(0o640)
    before = snapshot(root)

    patch.apply(request(root, state, patch_site.two_changes()), Context())
    between = run_python(root, "import demo; print(demo.answer())")
    patch.apply(request(root, state, patch_site.back(), action="revert"), Context())

    assert between == "1"
    assert snapshot(root) == before
    assert not (root / "new").exists()


def test_apply_keeps_the_mode_and_takes_the_folder_owner_for_new_files(
    root: Path, state: Path
) -> None:
    """A replaced file keeps its permissions, a read-only one too; a new file is readable by all."""
    (root / "args.py").chmod(0o444)

    patch.apply(request(root, state, patch_site.two_changes()), Context())

    assert (root / "args.py").stat().st_mode & 0o777 == 0o444
    assert (root / "new/ours.py").stat().st_mode & 0o777 == 0o644
    assert (root / "new/ours.py").stat().st_uid == root.stat().st_uid


def test_apply_does_not_reach_through_hard_links(root: Path, state: Path, tmp_path: Path) -> None:
    """uv links site-packages to its cache: another environment's file must not change with ours."""
    other = install(tmp_path / "other")
    (root / "core.py").unlink()
    os.link(other / "core.py", root / "core.py")

    patch.apply(request(root, state, patch_site.two_changes()), Context())

    assert (other / "core.py").read_bytes() == FILES["core.py"]
    assert b"OURS" in (root / "core.py").read_bytes()


def test_apply_replaces_a_symbolic_link_and_revert_brings_it_back(
    root: Path, state: Path, tmp_path: Path
) -> None:
    """With linked files the target belongs to a cache: the link is replaced, and restored on the way back."""
    cache = tmp_path / "cache.py"
    cache.write_bytes(FILES["core.py"])
    (root / "core.py").unlink()
    (root / "core.py").symlink_to(cache)

    patch.apply(request(root, state, patch_site.two_changes()), Context())
    replaced = (root / "core.py").is_symlink()
    patch.apply(request(root, state, patch_site.back(), action="revert"), Context())

    assert not replaced
    assert cache.read_bytes() == FILES["core.py"]
    assert os.readlink(root / "core.py") == str(cache)


def test_old_bytecode_is_gone_even_with_the_same_size_and_time(root: Path, state: Path) -> None:
    """Same size, same second: Python would run the old code; after an apply it must run the new."""
    new = FILES["core.py"].replace(b"return 1", b"return 7")
    stamp = 1_700_000_000
    os.utime(root / "core.py", (stamp, stamp))
    py_compile.compile(str(root / "core.py"), doraise=True)

    patch.apply(request(root, state, [change("core.py", FILES["core.py"], new)]), Context())
    os.utime(root / "core.py", (stamp, stamp))

    assert run_python(root, "import demo; print(demo.answer())") == "7"


def test_a_failed_proof_rolls_everything_back(root: Path, state: Path) -> None:
    """A patch that breaks the import leaves no trace, and the failure names the exception."""
    before = snapshot(root)
    broken = [
        change("new/ours.py", None, b"X = 1\n"),
        change("core.py", FILES["core.py"], b"import no_such_module\n"),
    ]

    with pytest.raises(Refused) as refused:
        patch.apply(request(root, state, broken, proof=proof(root, "demo.core")), Context())

    assert refused.value.kind == "proof-failed"
    assert "no_such_module" in refused.value.detail
    assert snapshot(root) == before
    assert not (root / "new").exists()


def test_a_proof_in_another_installation_is_none(root: Path, state: Path, tmp_path: Path) -> None:
    """Two installations: importing the other one proves nothing about the patched one (case 120)."""
    other = install(tmp_path / "other")
    before = snapshot(root)

    with pytest.raises(Refused, match=r"imports demo\.core from"):
        patch.apply(
            request(root, state, patch_site.two_changes(), proof=proof(other, "demo.core")),
            Context(),
        )

    assert snapshot(root) == before


def test_a_staged_proof_changes_nothing(root: Path, state: Path) -> None:
    """Before a stop the patched package is imported from a shadow; the installed one stays as it is."""
    before = snapshot(root)
    stage = {one["path"]: one["content"] for one in patch_site.two_changes()}

    good = patch.prove(
        {**proof(root, "demo.new.ours", "demo"), "root": str(root), "stage": stage}, Context()
    )
    stage["core.py"] = patch_record.pack(b"1 +\n")
    bad = patch.prove({**proof(root, "demo.core"), "root": str(root), "stage": stage}, Context())

    assert good["ok"], good
    assert not bad["ok"]
    assert "SyntaxError" in bad["detail"]
    assert snapshot(root) == before


def test_a_file_that_changed_meanwhile_stops_the_whole_series(root: Path, state: Path) -> None:
    """One file that is not as planned: none of the files changes."""
    (root / "args.py").write_bytes(b"FLAGS = []\n")
    before = snapshot(root)

    with pytest.raises(Refused) as refused:
        patch.apply(request(root, state, patch_site.two_changes()), Context())

    assert refused.value.kind == "changed-meanwhile"
    assert snapshot(root) == before


@pytest.mark.parametrize("fails_at", range(1, 12))
def test_a_full_disk_leaves_everything_as_it_was(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """No space at any write that is made durable: an error, and not one byte changed."""
    before = snapshot(root)
    calls = 0
    real = os.fsync

    def full(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(Refused) as refused:
        patch.apply(request(root, state, patch_site.two_changes()), Context())

    assert refused.value.kind == "no-space"
    assert snapshot(root) == before


def test_a_second_apply_is_told_who_holds_the_package(root: Path, state: Path) -> None:
    """The folder's lock is the machine's: whoever comes second changes nothing."""
    folder = os.open(root, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    before = snapshot(root)

    with pytest.raises(Refused) as refused:
        patch.apply(request(root, state, patch_site.two_changes()), Context())
    os.close(folder)

    assert refused.value.kind == "locked"
    assert snapshot(root) == before


CALLS = ("replace", "fsync", "unlink", "link", "mkdir", "write", "rmdir", "open", "symlink")
KILLED = """
    import os, signal, sys
    sys.path.insert(0, {repo!r})
    from pathlib import Path
    from opsctl.agent.ops import patch
    from tests.wire import patch_site as site

    left = {at}
    def counted(name):
        real = getattr(os, name)
        def call(*args, **kwargs):
            global left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)
        setattr(os, name, call)
    for name in {calls!r}:
        counted(name)
    root, state = Path({root!r}), Path({state!r})
    files = site.two_changes() if {forward} else site.back()
    request = site.request(root, state, files, action="apply" if {forward} else "revert")
    patch.apply(request, site.Context())
    print("completed")
"""


def run_and_kill(root: Path, state: Path, at: int, forward: bool) -> bool:
    """Apply in a child that is killed before its n-th call into the file system; True when it completed."""
    repo = str(Path(__file__).parents[2])
    code = textwrap.dedent(KILLED).format(
        repo=repo, at=at, root=str(root), state=str(state), forward=forward, calls=CALLS
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode == 0


def killed_at(call: int, act: Callable[[], object]) -> None:
    """Do it in a child that is killed before its n-th call into the file system, if it makes that many."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: the child needs none
        child = os.fork()
    if child == 0:  # never returns into pytest
        left = call

        def counted(name: str) -> None:
            real = getattr(os, name)

            def count(*args: object, **more: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **more)

            setattr(os, name, count)

        try:
            for name in CALLS:
                counted(name)
            act()
        except Refused:
            os._exit(0)  # not what it expected to find: it changed nothing
        except BaseException:  # noqa: BLE001
            os._exit(3)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status


@settings(max_examples=25, deadline=None)
@given(
    kills=st.lists(
        st.tuples(st.sampled_from(["apply", "revert", "look"]), st.integers(1, 90)),
        min_size=1,
        max_size=5,
    )
)
def test_kills_in_any_order_leave_old_or_new(
    tmp_path_factory: pytest.TempPathFactory, kills: list[tuple[str, int]]
) -> None:
    """Applies, reverts and the looks that mend them, each killed somewhere: the last look says old or new."""
    folder = tmp_path_factory.mktemp("kills")
    root, state = install(folder / "site"), folder / "state"
    old = snapshot(root)
    there = request(root, state, patch_site.two_changes())
    back = request(root, state, patch_site.back(), action="revert")
    look = {"root": str(root), "state_dir": str(state), "files": {}}
    patch.apply(there, Context())
    new = snapshot(root)
    patch.apply(back, Context())

    acts: dict[str, Callable[[], object]] = {
        "apply": lambda: patch.apply(there, Context()),
        "revert": lambda: patch.apply(back, Context()),
        "look": lambda: patch.look(look, Context()),
    }
    for act, call in kills:
        killed_at(call, acts[act])
    patch.look(look, Context())

    assert snapshot(root) in (old, new)


@pytest.mark.slow
@pytest.mark.parametrize("forward", [True, False], ids=["apply", "revert"])
def test_a_kill_at_any_point_leaves_old_or_new_after_the_next_look(
    tmp_path: Path, forward: bool
) -> None:
    """kill -9 before every single call: after the next look all files are old, or all are new."""
    outcomes = {"old": 0, "new": 0}
    for at in range(1, 200):
        root, state = install(tmp_path / f"site{at}"), tmp_path / f"state{at}"
        old = snapshot(root)
        patch.apply(request(root, state, patch_site.two_changes()), Context())
        new = snapshot(root)
        if forward:
            patch.apply(request(root, state, patch_site.back(), action="revert"), Context())
        else:
            old, new = new, old

        completed = run_and_kill(root, state, at, forward)
        patch.look({"root": str(root), "state_dir": str(state), "files": {}}, Context())

        after = snapshot(root)
        assert after in (old, new), f"half applied after a kill at call {at}"
        outcomes["new" if after == new else "old"] += 1
        if completed:
            break
    assert outcomes["old"] > 10
    assert outcomes["new"] >= 1
    assert completed


def test_a_stale_plan_is_refused_before_anything_is_written(root: Path, state: Path) -> None:
    """What a second apply planned before the first one committed: no journal may speak of it.

    Killed after its journal, it could not be taken back: the files are not as the journal says they were.
    """
    patch.apply(request(root, state, patch_site.two_changes()), Context())
    before = snapshot(root), sorted(state.rglob("*"))

    with pytest.raises(Refused) as refused:
        patch.apply(request(root, state, patch_site.two_changes()), Context())

    assert refused.value.kind == "changed-meanwhile"
    assert (snapshot(root), sorted(state.rglob("*"))) == before


def test_a_kill_between_two_renames_is_undone_by_the_next_look(root: Path, state: Path) -> None:
    """The worst moment, one file new and one old: the next look brings the old state back and says so."""
    before = snapshot(root)
    repo = str(Path(__file__).parents[2])
    code = textwrap.dedent(f"""
        import os, signal, sys
        sys.path.insert(0, {repo!r})
        from pathlib import Path
        from opsctl.agent.ops import patch
        from tests.wire import patch_site as site
        real = os.replace
        def replace(a, b):
            real(a, b)
            if str(b).endswith("core.py"):
                os.kill(os.getpid(), signal.SIGKILL)
        os.replace = replace
        root, state = Path({str(root)!r}), Path({str(state)!r})
        patch.apply(site.request(root, state, site.two_changes()), site.Context())
    """)
    subprocess.run([sys.executable, "-c", code], timeout=30, check=False)
    half = snapshot(root)

    dry = patch.look(
        {"root": str(root), "state_dir": str(state), "files": {}, "recover": False}, Context()
    )
    seen = patch.look({"root": str(root), "state_dir": str(state), "files": {}}, Context())

    assert half != before
    assert dry["interrupted"]["action"] == "apply"
    assert seen["recovered"]["outcome"] == "undone"
    assert snapshot(root) == before


def test_look_reports_hash_content_and_what_the_wheel_shipped(root: Path, state: Path) -> None:
    """A known hash comes without content, an unknown one with it, a missing file with neither."""
    (root / "args.py").write_bytes(b"FLAGS = []\r\n")
    known = [patch_site.sha(FILES["core.py"])]

    seen = patch.look(
        {
            "root": str(root),
            "state_dir": str(state),
            "info": str(root.parent / "demo-1.0.dist-info"),
            "files": {"core.py": known, "args.py": known, "gone.py": []},
            "verify_all": True,
        },
        Context(),
    )

    files = {one["path"]: one for one in seen["files"]}
    assert "content" not in files["core.py"]
    assert files["core.py"]["shipped"] == files["core.py"]["sha256"]
    assert patch_record.unpack(files["args.py"]["content"]) == b"FLAGS = []\r\n"
    assert files["gone.py"]["sha256"] is None
    assert seen["package"] == {"files": len(FILES) + 1, "changed": ["args.py"]}


def test_the_record_names_what_is_applied_and_a_torn_line_harms_nothing(
    root: Path, state: Path
) -> None:
    """The record survives a kill inside its last line."""
    patch.apply(request(root, state, patch_site.two_changes()), Context())
    with open(state / "log.jsonl", "a") as file:
        file.write('{"tx": "torn')

    patch.apply(request(root, state, patch_site.back(), action="revert"), Context())
    seen = patch.look({"root": str(root), "state_dir": str(state), "files": {}}, Context())
    lines = patch.log({"state_dir": str(state), "root": str(root)}, Context())["records"]

    assert seen["records"]["one"]["action"] == "revert"
    assert [line["action"] for line in lines] == ["apply", "revert"]


def test_locate_names_the_package_that_the_interpreter_imports(tmp_path: Path) -> None:
    """The launch's folder and environment decide; every other installation on the way is named."""
    first, second = install(tmp_path / "first"), install(tmp_path / "second", "2.0")
    env = {"PYTHONPATH": f"{first.parent}:{second.parent}"}
    asked = {"interpreter": sys.executable, "distribution": "demo", "module": "demo", "env": env}

    found = patch.locate(asked, Context())
    from_folder = patch.locate({**asked, "cwd": str(second.parent)}, Context())

    assert (found["root"], found["version"]) == (str(first), "1.0")
    assert found["others"] == [str(second)]
    assert (from_folder["root"], from_folder["version"]) == (str(second), "2.0")


@pytest.mark.parametrize(
    "line", ["[]", "3", "null", "{}", '{"tx": 1, "outcome": "done"}', "[" * 90_000]
)
def test_a_line_that_is_no_record_harms_nothing(root: Path, state: Path, line: str) -> None:
    """A disk that was mended, a hand that edited: what is no record is none, and all others count."""
    patch.apply(request(root, state, patch_site.two_changes()), Context())
    with open(state / "log.jsonl", "a") as file:
        file.write(line + "\n")

    seen = patch.look({"root": str(root), "state_dir": str(state), "files": {}}, Context())
    patch.apply(request(root, state, patch_site.back(), action="revert"), Context())

    assert seen["records"]["one"]["action"] == "apply"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"{}", b"\xff", b'{"files": 3}'])
def test_a_damaged_journal_is_a_named_failure(root: Path, state: Path, content: bytes) -> None:
    """What a change that was cut had done is in it alone: nobody guesses, and nothing is written."""
    (root / patch_record.JOURNAL).write_bytes(content)
    before = snapshot(root)

    for act in (
        lambda: patch.look({"root": str(root), "state_dir": str(state), "files": {}}, Context()),
        lambda: patch.apply(request(root, state, patch_site.two_changes()), Context()),
    ):
        with pytest.raises(Refused, match="move it away") as refused:
            act()
        assert refused.value.kind == "journal-damaged"
    assert snapshot(root) == before


def test_a_full_disk_cuts_no_other_package_s_line(
    root: Path, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two packages share one record: what is taken back of a line that did not fit is that line alone."""
    state.mkdir()
    log = state / "log.jsonl"
    log.touch()
    script = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND); "
        "print('on', flush=True); fcntl.flock(fd, fcntl.LOCK_EX); os.write(fd, b'{}\\n')"
    )
    other = subprocess.Popen([sys.executable, "-c", script, str(log)], stdout=subprocess.PIPE)
    write = os.write

    def short(fd: int, data: bytes) -> int:
        assert other.stdout is not None
        other.stdout.readline()  # the other one wants to write now
        with contextlib.suppress(subprocess.TimeoutExpired):
            other.wait(timeout=0.3)
        return write(fd, data[:5])

    monkeypatch.setattr(patch_record.os, "write", short)
    with pytest.raises(OSError, match="no space left"):
        patch_record.append_record(str(state), {"tx": "ours"})
    monkeypatch.undo()
    other.communicate(timeout=10)

    assert log.read_bytes() == b"{}\n"


def test_a_package_behind_a_symbolic_link_is_found(tmp_path: Path) -> None:
    """site-packages/demo -> a checkout: the distribution stands beside the link, the files behind it."""
    root = install(tmp_path / "site")
    behind = tmp_path / "checkout"
    root.rename(behind)
    root.symlink_to(behind)
    env = {"PYTHONPATH": str(root.parent)}
    asked = {"interpreter": sys.executable, "distribution": "demo", "module": "demo", "env": env}

    found = patch.locate(asked, Context())

    assert (found["root"], found["version"]) == (str(behind), "1.0")


def test_a_package_in_an_archive_is_a_named_failure(tmp_path: Path) -> None:
    """A zipped egg on the path: nothing in it can be replaced file by file."""
    egg = tmp_path / "demo.egg"
    with zipfile.ZipFile(egg, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(f"demo/{name}", content)
    env = {"PYTHONPATH": str(egg)}

    with pytest.raises(Refused, match="in an archive") as refused:
        patch.locate(
            {"interpreter": sys.executable, "distribution": "demo", "module": "demo", "env": env},
            Context(),
        )

    assert refused.value.kind == "package-zipped"


def test_damaged_metadata_hides_no_package(root: Path, state: Path) -> None:
    """A RECORD in another encoding, a direct_url.json that was cut: less is known, and that is all."""
    (info,) = root.parent.glob("*.dist-info")
    (info / "RECORD").write_bytes(b'\xff\xfe,,,\n"\n\0')
    (info / "direct_url.json").write_text("[1")
    asked = {"interpreter": sys.executable, "distribution": "demo", "module": "demo"}

    found = patch.locate({**asked, "env": {"PYTHONPATH": str(root.parent)}}, Context())
    look = {"root": str(root), "info": str(info), "state_dir": str(state), "files": {"core.py": []}}
    (seen,) = patch.look(look, Context())["files"]

    assert (found["version"], found["editable"]) == ("1.0", False)
    assert seen["shipped"] is None
    assert seen["sha256"] == patch_site.sha(FILES["core.py"])


def test_locate_without_an_interpreter_is_a_named_failure() -> None:
    """A path that is no interpreter is said, not guessed around."""
    with pytest.raises(Refused) as refused:
        patch.locate(
            {"interpreter": "/no/such/python", "distribution": "demo", "module": "demo"}, Context()
        )

    assert refused.value.kind == "no-interpreter"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file system")
def test_a_really_full_disk_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """The same on a real file system of 256 KiB without room for the new file."""
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)],
        capture_output=True,
        timeout=20,
        check=False,
    )
    if made.returncode:
        pytest.skip("mounting is not allowed here")
    with contextlib.ExitStack() as stack:
        stack.callback(subprocess.run, ["umount", str(mount)], timeout=20, check=False)
        root = install(mount / "site")
        before = snapshot(root)
        big = change("core.py", FILES["core.py"], FILES["core.py"] + b"#" * 400_000)

        with pytest.raises(Refused) as refused:
            patch.apply(request(root, tmp_path / "state", [big]), Context())

        assert refused.value.kind == "no-space"
        assert snapshot(root) == before


@settings(max_examples=25, deadline=None)
@given(
    contents=st.lists(
        st.tuples(
            st.binary(max_size=60).map(lambda b: b.replace(b"x", b"\r\n")),
            st.binary(max_size=60),
            st.sampled_from([0o644, 0o444, 0o755, 0o600]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_contents_and_modes_go_there_and_back(
    tmp_path_factory: pytest.TempPathFactory, contents: list[tuple[bytes, bytes, int]]
) -> None:
    """Whatever bytes (CRLF, no final newline, none at all) and modes: back is exactly before."""
    folder = tmp_path_factory.mktemp("any")
    root, state = folder / "demo", folder / "state"
    root.mkdir()
    for number, (old, _, mode) in enumerate(contents):
        (root / f"f{number}.py").write_bytes(old)
        (root / f"f{number}.py").chmod(mode)
    before = snapshot(root)
    there = [change(f"f{n}.py", old, new) for n, (old, new, _) in enumerate(contents) if old != new]
    back = [change(f"f{n}.py", new, old) for n, (old, new, _) in enumerate(contents) if old != new]

    patch.apply(request(root, state, there), Context())
    between = snapshot(root)
    patch.apply(request(root, state, back, action="revert"), Context())

    assert {k: v[0] for k, v in between.items()} == {
        f"f{n}.py": new for n, (_, new, _) in enumerate(contents)
    }
    assert {k: v[1] for k, v in between.items()} == {k: v[1] for k, v in before.items()}
    assert snapshot(root) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file system")
def test_a_read_only_file_system_is_named_and_left_alone(tmp_path: Path) -> None:
    """A package in a read-only image: not permitted, before any file is touched."""
    mount = tmp_path / "image"
    mount.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)]
    if subprocess.run(argv, capture_output=True, timeout=20, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    with contextlib.ExitStack() as stack:
        stack.callback(subprocess.run, ["umount", str(mount)], timeout=20, check=False)
        root = install(mount / "site")
        before = snapshot(root)
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], timeout=20, check=True)

        with pytest.raises(Refused) as refused:
            patch.apply(request(root, tmp_path / "state", patch_site.two_changes()), Context())

        assert refused.value.kind == "not-permitted"
        assert snapshot(root) == before
