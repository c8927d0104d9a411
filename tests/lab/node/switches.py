"""What a test may set on the node: delays, warnings and faults of tasks, short waits, old tickets.

One JSON object: ``delay_s``, ``warnings``, ``fail`` (each by type of task, e.g. vzstart), ``lock_wait_s``,
``tickets_gone_before_s``, ``no_snapshots``, ``users``, ``tokens``. `restore` removes the file.
"""

import json

PATH = "/var/lib/lab-pve/switches.json"


def read(name, default):
    """Return the value of a switch, read anew each time."""
    try:
        with open(PATH) as file:
            return json.load(file).get(name, default)
    except FileNotFoundError:
        return default
