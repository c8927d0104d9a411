"""The plan of a stop: order, units, evictions, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opsctl.domain.leftovers import judge_leftovers
from opsctl.domain.protection import Table, View
from opsctl.domain.selection import select
from opsctl.domain.stop_plan import UNTOLD, StopPlan, UnitFact, plan_stop
from opsctl.errors import SafetyRefusal, UsageError
from opsctl.facts import Leftover, Process

from .tables import GPU0, LAUNCH, detail, hold, proc, server, system, title, view

UNIT = "/system.slice/sglang.service"


def planned(
    *processes: Process,
    holders: tuple[int, ...] = (),
    evict: tuple[int, ...] = (),
    facts: tuple[UnitFact, ...] = (),
    seen_from: View | None = None,
) -> StopPlan:
    table = system(*processes)
    found = select(
        server(),
        table,
        {p.pid: detail(p.pid) for p in table},
        [hold(GPU0, pid) for pid in holders],
        seen_from or view(),
    )
    return plan_stop(found, Table.of(table), evict, facts)


def test_the_root_is_first_and_the_rest_follows() -> None:
    """TERM goes to the root; the others have their turn later."""
    plan = planned(title(4100, 4200, "sglang::scheduler", start=9000), proc(4200, 1, LAUNCH))
    assert [target.pid for target in plan.targets] == [4200, 4100]
    assert [root.pid for root in plan.roots] == [4200]


def test_nothing_found_is_an_empty_plan() -> None:
    """An empty list is no error and signals nobody."""
    assert planned().is_empty


def test_foreign_holders_are_left_alone_unless_named() -> None:
    """--evict takes exactly the pid that it names."""
    jobs = (proc(6000, 1, "python3 train.py"), proc(6001, 1, "python3 other.py"))

    assert planned(*jobs, holders=(6000, 6001)).is_empty
    plan = planned(*jobs, holders=(6000, 6001), evict=(6000,))
    assert [target.pid for target in plan.targets] == [6000]
    assert [judged.pid for judged in plan.left_alone] == [6001]


def test_another_user_s_holder_can_be_evicted() -> None:
    """Foreign, also of another user, goes by --evict."""
    job = proc(6000, 1, "python3 train.py", uid=1001, user="ada")
    assert [t.pid for t in planned(job, holders=(6000,), evict=(6000,)).targets] == [6000]


@pytest.mark.parametrize(
    ("process", "code"),
    [
        (proc(6000, 1, "nvidia-persistenced", exe="/usr/bin/nvidia-persistenced"), "protected"),
        (proc(6000, 1, "x", cgroup="/lxc/131/ns", ns_pids=(6000, 4)), "protected"),
        (proc(6001, 1, "x"), "not-visible"),
    ],
)
def test_the_protected_and_the_invisible_are_never_evicted(process: Process, code: str) -> None:
    """--evict does not reach them."""
    with pytest.raises(SafetyRefusal) as refusal:
        planned(process, holders=(6000,), evict=(6000,))
    assert refusal.value.code == code
    assert refusal.value.exit_code == 50


@pytest.mark.parametrize("pid", [4200, 5000, 1, 800])
def test_evict_is_for_holders_only(pid: int) -> None:
    """A member, a bystander, pid 1 and one's own login are no holders."""
    with pytest.raises(UsageError):
        planned(proc(4200, 1, LAUNCH), proc(5000, 1, "nginx"), evict=(pid,))


def test_a_doubt_refuses_and_names_both() -> None:
    """One process that cannot be attributed stops the whole stop."""
    other = proc(4000, 1, "python3 -m sglang.launch_server --model-path /b --port 30001")
    orphan = title(4202, 1, "sglang::scheduler_TP0")

    with pytest.raises(SafetyRefusal) as refusal:
        planned(other, orphan, holders=(4202,))

    assert "4202" in refusal.value.message
    assert "glm5 (port 30000, model /models/m)" in refusal.value.message
    assert "pid 4000 (port 30001, model /b)" in refusal.value.message
    assert "--evict 4202" in (refusal.value.next_step or "")


def test_a_doubt_can_be_resolved_by_naming_it() -> None:
    """The operator decides what opsctl could not."""
    other = proc(4000, 1, "python3 -m sglang.launch_server --model-path /b --port 30001")
    orphan = title(4202, 1, "sglang::scheduler_TP0")
    plan = planned(other, orphan, holders=(4202,), evict=(4202,))
    assert [target.pid for target in plan.targets] == [4202]


def test_a_server_that_is_pid_1_of_its_container_is_refused() -> None:
    """It is the container that has to be stopped, with and without --evict."""
    init = proc(363, 1, LAUNCH, cgroup="/lxc/129/ns", ns_pids=(363, 1))
    inside = view(container="129")

    with pytest.raises(SafetyRefusal, match="pid 1 of its container"):
        planned(init, seen_from=inside)
    with pytest.raises((SafetyRefusal, UsageError)):
        planned(init, evict=(363,), seen_from=inside)


def test_a_missing_user_is_said_with_the_line_to_add() -> None:
    """Another owner's server with our port and model: the next step names the key."""
    with pytest.raises(SafetyRefusal) as refusal:
        planned(proc(4200, 1, LAUNCH, uid=1000, user="ops"))
    assert "`user:`" in (refusal.value.next_step or "")


def test_a_unit_that_holds_only_the_server_is_stopped_as_a_unit() -> None:
    """So that Restart= does not bring it back."""
    root = proc(4200, 1, LAUNCH, cgroup=UNIT)
    worker = title(4202, 4200, "sglang::scheduler", cgroup=UNIT)
    plan = planned(root, worker, facts=(UnitFact("sglang.service", "always"),))

    assert plan.units == ("sglang.service",)
    assert [finding.code for finding in plan.findings] == ["unit-restarts"]


def test_a_unit_of_which_systemd_says_nothing_is_told() -> None:
    """It hangs: the server is stopped all the same, and whether it comes back is not known."""
    root = proc(4200, 1, LAUNCH, cgroup=UNIT)
    plan = planned(root, facts=(UnitFact("sglang.service", UNTOLD),))

    assert plan.roots
    assert [finding.code for finding in plan.findings] == ["unit-unknown"]


def test_a_unit_of_the_same_name_in_another_container_is_another_unit() -> None:
    """The path down to the unit is compared, not its name."""
    inside = "/lxc/129/ns/system.slice/sglang.service"
    elsewhere = "/lxc/131/ns/system.slice/sglang.service"
    plan = planned(
        proc(4200, 1, LAUNCH, cgroup=inside, ns_pids=(4200, 9)),
        proc(5200, 1, "nginx", cgroup=elsewhere, ns_pids=(5200, 9)),
        seen_from=view(container="129"),
    )
    assert plan.units == ("sglang.service",)


def test_a_unit_shared_with_others_is_not_stopped() -> None:
    """Its other processes live on, and the loop is told."""
    root = proc(4200, 1, LAUNCH, cgroup=UNIT)
    plan = planned(root, proc(4300, 1, "nginx", cgroup=UNIT))
    assert plan.units == ()
    assert [finding.code for finding in plan.findings] == ["restart-loop"]


@pytest.mark.parametrize("others", [(), (proc(900, 1, "sshd", exe="/usr/sbin/sshd"),)])
def test_a_unit_of_logins_is_neither_stopped_nor_said_to_start_it_again(
    others: tuple[Process, ...],
) -> None:
    """A server started by hand over ssh stays in ssh.service, alone or not: stopping that ends the way in."""
    cgroup = "/system.slice/ssh.service"
    plan = planned(
        proc(4200, 1, LAUNCH, cgroup=cgroup), *(replace(one, cgroup=cgroup) for one in others)
    )

    assert plan.units == ()
    assert [finding.code for finding in plan.findings] == ["login-unit"]
    assert "again" not in plan.findings[0].text


@pytest.mark.parametrize(
    "cgroup",
    ["/user.slice/user-0.slice/session-1.scope", "/", "/user.slice/user@0.service/x.scope"],
)
def test_a_login_session_is_no_unit_to_stop(cgroup: str) -> None:
    """Stopping it would end the operator's own login."""
    assert planned(proc(4200, 1, LAUNCH, cgroup=cgroup)).units == ()


def test_a_user_s_own_unit_is_told_and_not_stopped_as_the_system_s() -> None:
    """`systemctl stop` of the system would not find it."""
    cgroup = "/user.slice/user-0.slice/user@0.service/app.slice/sglang.service"
    plan = planned(proc(4200, 1, LAUNCH, cgroup=cgroup))
    assert plan.units == ()
    assert plan.findings[0].next == "systemctl --user stop sglang.service"


@pytest.mark.parametrize(
    "parent",
    [
        proc(4000, 1, "/usr/bin/python3 /usr/bin/supervisord -n"),
        proc(4000, 1, "runsv sglang", exe="/usr/bin/runsv"),
        proc(4000, 1, "/bin/bash /opt/run-forever.sh", exe="/bin/bash"),
    ],
)
def test_a_parent_that_restarts_is_told(parent: Process) -> None:
    """Supervisors and looping scripts start the server again."""
    plan = planned(parent, proc(4200, 4000, LAUNCH))
    assert [finding.code for finding in plan.findings] == ["restart-loop"]
    assert "4000" in plan.findings[0].text


@pytest.mark.parametrize(
    ("leftover", "removes"),
    [
        (Leftover("shm", "/dev/shm/sgl_shm_mm_4242_a1b2", 3, 4242, False), True),
        (Leftover("shm", "/dev/shm/sgl_shm_mm_4242_a1b2", 3, 4242, True), False),
        (Leftover("shm", "/dev/shm/nccl-onFp46", 0, None, None), False),
        (Leftover("shm", "/dev/shm/nccl-onFp46", 0, None, False), True),
        (Leftover("port", "30000", None, 77, True), False),
        (Leftover("port", "30000", None, 77, False), False),
        (Leftover("unit", "x.service", None, None, False), False),
        (Leftover("lock-file", "/run/opsctl/gpu-x.lock", None, 5, False), True),
        (Leftover("jit-lock", "/root/.cache/x/lock", 0, None, None), False),
        (Leftover("jit-lock", "/root/.cache/x/a.lock", 0, None, False), False),
    ],
)
def test_only_what_is_proven_dead_is_swept(leftover: Leftover, removes: bool) -> None:
    """A living owner and an unknown one keep the file; ports and units are shown only."""
    (verdict,) = judge_leftovers([leftover])
    assert verdict.removes is removes
    assert verdict.reason
