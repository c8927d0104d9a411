"""What alone proves that a process is the server: the launch record, marks, its command line; pure."""

from __future__ import annotations

from opsctl.domain.launch_line import LaunchLine, is_python, read_title
from opsctl.domain.process import in_unit, is_command
from opsctl.domain.selection_scene import Scene
from opsctl.facts import Process


def proof_by_record(scene: Scene, process: Process) -> str | None:
    """Return why a process is what opsctl or systemd launched as the server, or None."""
    server = scene.server
    if server.is_recorded(process):
        return "named by the launch record"
    if in_unit(server, process):
        return f"in the server's unit {server.unit}"
    detail = scene.details.get(process.pid)
    markers = (detail.environment_markers if detail else None) or {}
    if server.run_id is not None and markers.get("OPSCTL_RUN") == server.run_id:
        return f"carries the mark of run {server.run_id}"
    if _is_in_recorded_session(scene, process):
        return f"in the session that the launch record names ({process.session})"
    return None


def proof_by_argv(scene: Scene, process: Process) -> str | None:
    """Return why a process is the server by its command line, or None."""
    if is_command(scene.server, process):
        return "its command line is the site's command"
    line = scene.lines.get(process.pid)
    if line and scene.server.command is None and not is_other_program(process):
        return _proof_by_line(scene, process, line)
    return None


def is_other_program(process: Process) -> bool:
    """Say whether what runs is known and is no Python: argv is written by whoever starts a program."""
    exe = process.exe
    return exe is not None and not is_python(exe.removesuffix(" (deleted)"))


def _is_in_recorded_session(scene: Scene, process: Process) -> bool:
    """A worker in the session of a recorded process that is dead.

    Its number may have led a later session too, so the title is asked for, and a living leader
    must be the recorded one (that one's session is looked at with its tree).
    """
    leader = scene.table.by_pid.get(process.session)
    if scene.view.container is not None or leader or read_title(process.argv) is None:
        return False  # from a host, sessions have other numbers than the record
    return any(
        entry.pid == process.session
        and entry.boot_id == process.identity.boot_id
        and entry.start_ticks <= process.identity.start_ticks
        for entry in scene.server.recorded
    )


def _proof_by_line(scene: Scene, process: Process, line: LaunchLine) -> str | None:
    server = scene.server
    port_fits = server.fits_port(line)
    if port_fits is None:
        port_fits = scene.listens(process.pid) or None
    if not port_fits or server.fits_model(line) is False:
        return None
    model = " with this model" if line.model and server.model else ""
    return f"command line: sglang on port {server.port}{model}"
