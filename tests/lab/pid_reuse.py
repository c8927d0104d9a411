"""Start a program under a chosen pid, as happens by chance when pids wrap around.

Runs on a lab host, standard library only: python3 /opt/lab-src/pid_reuse.py PID -- CMD ARGS
It starts CMD as process PID of this pid namespace, prints "PID START_TICKS", and waits for it.
`fixture.Lab.start_as` does that from a test.
"""

import os
import sys
import time

TRIES = 200


def ticks(pid):
    """Return the start time of a process, in clock ticks since boot."""
    with open(f"/proc/{pid}/stat") as stat:
        text = stat.read()
    return int(text[text.rindex(")") + 2 :].split()[19])


def fork_as(pid):
    """Fork until the child has number ``pid``; return 0 in the child, True in the parent.

    Writing N-1 to ns_last_pid makes N the next number that the kernel tries. It takes another if N is
    still in use or another process was faster.
    """
    for _ in range(TRIES):
        with open("/proc/sys/kernel/ns_last_pid", "w") as last:
            last.write(str(pid - 1))
        child = os.fork()
        if child == 0:
            if os.getpid() == pid:
                return 0
            os._exit(0)
        if child == pid:
            return True
        os.waitpid(child, 0)
        time.sleep(0.005)
    sys.exit(f"pid_reuse: {pid} is still taken after {TRIES} tries")


def main():
    pid, command = int(sys.argv[1]), sys.argv[3:]
    executed, still_ours = os.pipe()  # closed by exec
    if fork_as(pid) == 0:
        try:
            os.execvp(command[0], command)
        except OSError as error:
            sys.stderr.write(f"{command[0]}: {error.strerror}\n")
            os._exit(127)
    os.close(still_ours)
    os.read(executed, 1)
    print(pid, ticks(pid), flush=True)
    _, status = os.waitpid(pid, 0)
    sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main()
