"""Turn opsctl's --json documents into annotations and a summary of a GitHub Actions job.

    python3 annotate.py restart.json smoke.json

Standard library only. A file that is missing or empty (its step did not run) is passed over; the exit code is
0: the steps themselves have failed the job where it had to fail.
"""

import json
import os
import sys

BAD = (
    1,
    2,
    10,
    20,
    30,
    40,
    60,
    70,
)  # the others: refused, could not tell, not measured, interrupted


def main(paths):
    summary = []
    for path in paths:
        document = read(path)
        if document is None:
            continue
        command = document["schema"].removeprefix("opsctl.").split("/")[0]
        title = "{} {}".format(command, document["outcome"])
        code = document["exit_code"]
        for finding in document["findings"]:
            level = "notice" if code == 0 else "error" if code in BAD else "warning"
            text = ": ".join(part for part in (finding["subject"], finding["text"]) if part)
            text += "\nnext: " + finding["next"] if finding["next"] else ""
            print("::{} title={}::{}".format(level, escape(title, ":,"), escape(text)))
        summary += ["", f"### {title} (exit {code})", *details(document["data"])]
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    if place:
        with open(place, "a", encoding="utf-8") as out:
            out.write("\n".join(summary) + "\n")
    return 0


def read(path):
    try:
        with open(path, encoding="utf-8") as text:
            return json.load(text)
    except (OSError, ValueError):
        return None


def details(data):
    """Return the lines of the summary: where it broke, why, and the levels."""
    lines = []
    if data.get("bracket"):
        lines.append("last good C={last_good}, first bad C={first_bad}".format(**data["bracket"]))
    if data.get("diagnosis"):
        lines.append(cell(data["diagnosis"].get("explanation")))
    rows = [level for level in data.get("levels") or [] if "outcome" in level]
    if rows:
        lines += ["", "| C | outcome | tok/s | TTFT p99 ms |", "|---|---|---|---|"]
        for level in rows:
            rate, first = level.get("output_tok_s"), (level.get("ttft_ms") or {}).get("p99")
            lines.append(
                "| {} | {} | {} | {} |".format(
                    level["concurrency"], cell(level["outcome"]), number(rate), number(first)
                )
            )
    return lines


def number(value):
    return "" if value is None else f"{value:.1f}"


def cell(text):
    """Return text that makes no markup of its own."""
    return (
        str(text).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("\n", " ")
    )


def escape(text, more=""):
    """Escape for a workflow command, as the runner's own toolkit does."""
    for letter in "%\r\n" + more:
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
