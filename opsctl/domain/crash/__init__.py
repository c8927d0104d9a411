"""Say what went wrong in a server's log: rules as data, one verdict, sizes explained, a stable signature.

Pure: records in, diagnosis out. `opsctl.sglang.log` makes the records.
"""

from opsctl.domain.crash.diagnose import diagnose
from opsctl.domain.crash.launch import launch_of
from opsctl.domain.crash.model import Context, Diagnosis, Launch, Record, Sizes

__all__ = ["Context", "Diagnosis", "Launch", "Record", "Sizes", "diagnose", "launch_of"]
