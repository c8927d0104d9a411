"""The flow behind `opsctl smoke`: options to a run, a run to its reports."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl.cli.app import App
from opsctl.cli.smoke_options import build_options, endpoint_of, take_server_settings
from opsctl.cli.smoke_record import load_run, record_smoke, way_out_of
from opsctl.cli.talk import can_redraw
from opsctl.domain.report import LevelReport
from opsctl.errors import OpsctlError, UsageError
from opsctl.output import Document, Finding
from opsctl.records import dataclass
from opsctl.sglang.endpoint import Endpoint
from opsctl.smoke.bracket import Restart
from opsctl.smoke.comeback import CommandRestart, bisect_report
from opsctl.smoke.compare import other_way
from opsctl.smoke.diagnosis import explain
from opsctl.smoke.gates import (
    Gate,
    GateResult,
    check_metric,
    judge_gates,
    judge_ratio,
    parse_gate,
    parse_slo,
)
from opsctl.smoke.levels import PROFILES
from opsctl.smoke.report import PlainView, report_data, smoke_document, text_report
from opsctl.smoke.run import Options, SmokeReport, plan_smoke, run_smoke
from opsctl.smoke.store import answers_from_json, new_run_id, save_result

if TYPE_CHECKING:
    from opsctl.smoke.agent_watch import AgentWatch
    from opsctl.smoke.host_load import HostLoad

OWN = (
    "log_path", "bisect", "restart_command", "fail_if", "min_ratio", "against", "junit_path",
    "html_path", "records_path", "label", "reference", "slo", "way",
)  # fmt: skip


@contextmanager
def _launch_is_next(name: str, *, watched: bool) -> Iterator[None]:
    """Say how to start a server of the site where nothing listens on its port."""
    try:
        yield
    except OpsctlError as error:
        if error.code == "no-server":
            how = "runs and does not listen" if watched else "does not run"
            error.message = f"{name} {how}: {error.message}"
            error.next_step = f"opsctl status {name}" if watched else f"opsctl launch {name}"
        raise


@dataclass(slots=True)
class Flow:
    """One command line, from its options to the document."""

    app: App
    server: str | None
    url: str | None
    given: dict[str, Any]
    own: dict[str, Any] = field(default_factory=dict)
    gates: list[Gate] = field(default_factory=list)
    slo: dict[str, float] = field(default_factory=dict)
    against: dict[str, Any] | None = None
    answers: dict[str, Any] | None = None
    launched_by: str | None = None
    log: str = ""  # what the server's log gained, kept when it explains a bad level

    def run(self) -> tuple[Document, Callable[[], str]]:
        self._check()
        started_s = time.time()
        with ExitStack() as stack:
            if self.app.dry_run:
                return self._plan(stack)
            if self.url is not None:
                report = self._run_url(self.url, stack)
            else:
                report = self._run_server(str(self.server), stack)
        run = new_run_id()
        stored = report_data(report, stored=True)
        stored["label"] = self.own["label"] or self.server
        gates = self._judge(stored)
        document = smoke_document(report, run)
        document.findings += gates.findings
        if document.exit_code == 0 and gates.exit_code:
            document.exit_code = gates.exit_code
            document.outcome = "failed" if gates.exit_code == 70 else "not-measured"
        stored["outcome"] = document.outcome
        try:
            save_result(self.app.state(), run, stored)
        except OSError as error:
            where = str(self.app.state_path())
            document.findings.append(Finding("not-recorded", where, str(error)))
        name = self.server or report.options.endpoint.url
        record_smoke(self.app, document, name, started_s, self.log, self.launched_by)
        self._write_files(stored | {"run": run}, gates)
        return document, lambda: text_report(report, run)

    def _check(self) -> None:
        """Refuse what cannot work before anything is sent."""
        if (self.server is None) == (self.url is None):
            raise UsageError(
                "name a server of the site file, or give --url",
                next_step="for example: opsctl smoke --url http://127.0.0.1:30000",
            )
        self.own = {name: self.given.pop(name) for name in OWN}
        self.gates = [parse_gate(text) for text in self.own["fail_if"]]
        self.slo = parse_slo(self.own["slo"])
        for metric, ratio in self.own["min_ratio"]:
            check_metric(metric)
            if not 0 < ratio < float("inf"):
                raise UsageError(f"the ratio for {metric} must be above 0")
        if bool(self.own["min_ratio"]) != (self.own["against"] is not None):
            raise UsageError("--min-ratio and --against go together")
        if self.own["against"] is not None:
            self.against = load_run(self.app, self.own["against"])
        if self.own["reference"] is not None:
            earlier = load_run(self.app, self.own["reference"])
            self.answers = answers_from_json(earlier.get("answers"))
            if not self.answers:
                raise UsageError(f"the run {self.own['reference']} kept no answers")
        if self.url is not None and self.own["way"] not in (None, "here"):
            raise UsageError(
                "a URL is asked from this machine: --from tunnel and --from host need a server",
                next_step="name the server in the site file",
            )
        if self.own["restart_command"] and not (self.url and self.own["bisect"]):
            raise UsageError("--restart-command goes with --url and --bisect")
        if self.url and self.own["bisect"] and not self.own["restart_command"]:
            raise UsageError(
                "--bisect restarts the server, and a URL does not say how",
                next_step="give --restart-command, or a server of the site file",
            )
        self.app.state()  # a result that could not be kept is known before an hour of load

    def _plan(self, stack: ExitStack) -> tuple[Document, Callable[[], str]]:
        """Say what would be sent, from real reads; nothing is generated."""
        if self.url is not None:
            endpoint, api = endpoint_of(self.url, self.given)
            options = self._options(endpoint, api or self.given["api"])
        else:
            from opsctl.session import ServerSession, open_hosts
            from opsctl.site_cache import load_site
            from opsctl.smoke.target import open_target

            site = load_site(self.app.site_path)
            session = ServerSession(stack.enter_context(open_hosts(site)), str(self.server))
            target = stack.enter_context(open_target(session, self.own["way"]))
            options = self._options(target.endpoint, self.given["api"])
            take_server_settings(options, session.server, self.given)
        report = plan_smoke(options)
        profile = PROFILES[options.profile]
        levels = [
            {"concurrency": c, "requests": profile.requests(c, options.requests)}
            for c in report.wanted
        ]
        data = {
            "url": options.endpoint.url,
            "api": report.info.api,
            "profile": options.profile,
            "tokens": options.tokens or profile.tokens,
            "levels": levels,
            "down": profile.down if options.down is None else options.down,
            "mixed": profile.mixed if options.mixed is None else options.mixed,
            "bisect": self.own["bisect"],
        }

        def text() -> str:
            lines = [f"would send to {data['url']} ({data['api']}, {data['tokens']} tokens each):"]
            lines += [f"  C={one['concurrency']}: {one['requests']} requests" for one in levels]
            if self.own["bisect"]:
                lines.append("  then restart the server and search the exact first bad level")
            return "\n".join(lines)

        return Document("smoke", "planned", data=data), text

    def _run_url(self, url: str, stack: ExitStack) -> SmokeReport:
        endpoint, api = endpoint_of(url, self.given)
        options = self._options(endpoint, api or self.given["api"])
        watch = None
        if self.own["log_path"] is not None:
            watch = stack.enter_context(_local_log(self.own["log_path"]))
        report = self._climb(options, watch)
        if self.own["bisect"]:
            self.app.confirm(f"restart the server by '{self.own['restart_command']}'?")
            argv = shlex.split(self.own["restart_command"])
            restart = CommandRestart(argv, endpoint, options.api, _say)
            self._bisect(report, lambda again: self._climb(again, None), restart)
        return report

    def _run_server(self, name: str, stack: ExitStack) -> SmokeReport:
        from opsctl.session import ServerSession, open_hosts
        from opsctl.site_cache import load_site
        from opsctl.smoke.target import open_target

        if self.own["log_path"] is not None:
            raise UsageError("--log goes with --url: a server's own log is followed anyway")
        site = load_site(self.app.site_path)
        session = ServerSession(stack.enter_context(open_hosts(site)), name)

        def climb(change: Callable[[Options], Options]) -> SmokeReport:
            with open_target(session, self.own["way"]) as target:
                if target.problem is not None:
                    _say(f"nobody watches the processes: {target.problem}")
                options = self._options(target.endpoint, self.given["api"])
                take_server_settings(options, session.server, self.given)
                with _launch_is_next(name, watched=target.watch is not None):
                    report = self._climb(
                        change(options),
                        target.watch,
                        target.load,
                        lambda: way_out_of(self.app, session, target.launched_by),
                    )
                report.load["from"] = target.way
                self.launched_by = target.launched_by
                return report

        report = climb(lambda options: options)
        if self.own["bisect"]:
            restart = self._restart_of(name)
            self._bisect(
                report,
                lambda again: climb(lambda fresh: replace(again, endpoint=fresh.endpoint)),
                restart,
            )
        return report

    def _restart_of(self, name: str) -> Restart:
        """Return the restart of a server of the site, by its playbook."""
        from opsctl.smoke.playbook_restart import PlaybookRestart

        self.app.confirm(f"restart the server {name} after each crash?")
        return PlaybookRestart(name, self.app.site_path, self.app.state_dir, _say)

    def _bisect(
        self,
        report: SmokeReport,
        run_again: Callable[[Options], SmokeReport],
        restart: Restart,
    ) -> None:
        found = bisect_report(report, run_again, restart)
        report.bisection = None if found is None else found.to_dict()

    def _climb(
        self,
        options: Options,
        watch: AgentWatch | None,
        load: HostLoad | None = None,
        way_out: Callable[[], str | None] = lambda: None,
    ) -> SmokeReport:
        handlers: list[Any] = [self._view()]
        if self.own["records_path"] is not None:
            from opsctl.smoke.records import RecordWriter

            handlers.append(RecordWriter(self.own["records_path"]))

        def on_event(kind: str, payload: dict[str, Any]) -> None:
            for handler in handlers:
                handler(kind, payload)

        try:
            report = run_smoke(options, watch=watch, on_event=on_event, load=load)
        finally:
            for handler in handlers:
                handler.close()
        bad = next((level for level in report.all_levels if level.outcome.is_bad), None)
        if bad is not None:
            text = watch.text if watch is not None else ""
            self.log = self.log or text
            report.diagnosis = explain(report, bad, watch, self.server, way_out())
            add_diagnosis(report, bad)
        return report

    def _view(self) -> Any:
        if can_redraw() and not self.app.as_json:
            from opsctl.smoke.live import LiveView

            return LiveView()
        return PlainView()

    def _options(self, endpoint: Endpoint, api: str | None) -> Options:
        return build_options(self.given, endpoint, api, slo=self.slo, reference=self.answers)

    def _judge(self, stored: dict[str, Any]) -> GateResult:
        levels = [level for level in stored["levels"] if level["requests"]]
        results = [judge_gates(self.gates, levels)] if self.gates else []
        for metric, ratio in self.own["min_ratio"]:
            assert self.against is not None
            results.append(judge_ratio(metric, ratio, levels, self.against["levels"]))
        findings = tuple(finding for result in results for finding in result.findings)
        caution = None if self.against is None else other_way([stored, self.against])
        if caution is not None:
            findings += (Finding("other-way", "", caution, "measure both with the same --from"),)
        codes = [result.exit_code for result in results]
        return GateResult(findings, 70 if 70 in codes else max(codes, default=0))

    def _write_files(self, stored: dict[str, Any], gates: GateResult) -> None:
        if self.own["junit_path"] is not None:
            from opsctl.smoke.junit import junit_report

            _write(self.own["junit_path"], junit_report(stored, gates.findings))
        if self.own["html_path"] is not None:
            from opsctl.smoke.html import html_report

            runs = [stored] if self.against is None else [stored, self.against]
            _write(self.own["html_path"], html_report(runs))


def add_diagnosis(report: SmokeReport, bad: LevelReport) -> None:
    """Say the diagnosis as a finding."""
    found = report.diagnosis
    if found is None:
        return
    subject = f"level {bad.concurrency}"
    steps = found["next"]
    report.findings.append(
        Finding(
            found["category"] or "unknown", subject, found["explanation"], steps[0] if steps else ""
        )
    )


def _local_log(path: Path) -> Any:
    """Return a watch on a log of this machine, as a context."""
    from contextlib import contextmanager

    from opsctl.session import open_hosts
    from opsctl.site import Host, Site
    from opsctl.smoke.agent_watch import AgentWatch

    if not path.is_file():
        raise UsageError(f"there is no log {path}")

    @contextmanager
    def watching() -> Any:
        with open_hosts(Site(hosts={"here": Host(local=True)})) as hosts:
            agent = hosts.agent("here")
            yield AgentWatch(agent, (), agent, str(path.resolve()))

    return watching()


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
