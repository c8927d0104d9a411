"""The words of the generated pages that are not in the code."""

SITE_HEAD = """# The site file

`opsctl.yaml` says which hosts there are, what runs where, and how secrets are reached. opsctl takes the file
that `--site` or `OPSCTL_SITE` names, else `./opsctl.yaml`, else `~/.config/opsctl/opsctl.yaml`; without any,
this machine is the only host.

`opsctl config example` prints one to begin with, `opsctl config check` checks it (every mistake with file and
line), `opsctl config show` prints it with the defaults filled in, and `opsctl config schema` prints its JSON
Schema for your editor. An unknown key is a mistake.
"""
COMMANDS_HEAD = """# Commands

What `--help` says. Every command takes `--site`, `--state` and `--json`; one that changes something also
`--yes` and `--dry-run`. The documents that `--json` prints are described by [schemas](../schemas/index.md),
the exit codes [here](exit-codes.md).
"""
EXIT_CODES_HEAD = """# Exit codes

The same for every command, so that a script or a pipeline can decide without reading text. In `--json` the
document's `exit_code` is the process's, and each finding has a `code` of its own; those of the families below
are what an error has when it has no finer one.

| exit | code | meaning | what to do |
|---|---|---|---|
"""
EXIT_CODES_TAIL = """
Two pairs are kept apart on purpose. **20 and 21**: looked, and it is bad; could not look. Memory that could
not be read is never free. **70 and 75**: the server answered badly; the client could not tell. A gate on a
number that was not measured is 75, not a pass.

`opsctl diagnose` uses 0, 20 and 21 only, see [diagnosis](../diagnosis.md#exit-codes).
"""
PLAYBOOKS_HEAD = """# Playbooks

A playbook is a named order of steps. `opsctl run PLAYBOOK SERVER` runs one: a name of those that ship, or a
path that ends in `.yaml`. What stands before the step `ask` only looks, and runs in a dry run.
`opsctl playbook check FILE` names every mistake with its line.
"""

SCHEMAS_HEAD = """# Documents of --json

Every command prints one JSON object with `--json`, on stdout, also when it ends with an error:

```json
{"schema": "opsctl.stop/1", "outcome": "stopped", "exit_code": 0, "run": "20261129-213605-4926",
 "findings": [{"code": "...", "subject": "...", "text": "...", "next": "..."}], "data": {}}
```

`schema` is `opsctl.<command>/<version>`. Within a version keys may be added; none changes its meaning
or goes. `outcome` is a word, `exit_code` the process's [exit code](../reference/exit-codes.md), `run` the id
in the [ledger](../ledger.md) where there is one, and `data` the command's own part: `{}` when the outcome is
`error`.

The schemas are JSON Schema 2020-12. `opsctl schema` lists them, `opsctl schema NAME` prints one: of the
opsctl that you have. The tests check every document of every command against them, and allow no key that is
not in them; your programs should allow more keys.

| document | schema |
|---|---|
"""
WHAT_TO_DO = {
    0: "nothing; also when it was stopped or applied already",
    1: "run it again with `OPSCTL_TRACEBACK=1` and report the trace",
    2: "`opsctl COMMAND --help`",
    10: "mend the file and line that are named, then `opsctl config check`",
    20: "read the finding: it names what is wrong and what to do next",
    21: "nothing is claimed either way: find out what hides it (NVML, a lost GPU, a time-out)",
    30: "reach the host by hand (ssh, pct), then again; a cut run goes on with `opsctl resume`",
    40: "the far side's Python or disk: the message quotes it; a cut run goes on with `opsctl resume`",
    50: "nothing was changed; the reason says what would have to be true",
    60: "`opsctl show last`, `opsctl logs SERVER`; see [server crashed](../runbooks/server-crashed.md)",
    70: "the server lives and answers badly: `opsctl show last`",
    75: "the client or the environment was the limit: measure again from elsewhere",
    130: "`opsctl resume` lists what is open",
}
