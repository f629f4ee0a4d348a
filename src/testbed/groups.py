"""Control groups: each host has one in every hierarchy, so that systemd inside finds a root of its
own and everything that belongs to the host can be found and killed."""

import contextlib
import os
import signal
import time
from pathlib import Path

from failure import Failed

PREFIX = "imgctl-testbed"


def name(bed, part):
    """The group of a part of a bed: a host or the warden."""
    return f"{PREFIX}.{bed}.{part}"


def _hierarchies():
    """Mount point, type and options of each hierarchy; one where a group needs no setting up is
    first."""
    found = sorted(_mounted(), key=lambda hierarchy: "cpuset" in hierarchy[2])
    if not found:
        raise Failed("no control groups are mounted on /sys/fs/cgroup")
    return found


def _mounted():
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, point, kind, options, *_ = line.split(" ")
        if kind in ("cgroup", "cgroup2") and point.startswith("/sys/fs/cgroup"):
            yield Path(point), kind, options.split(",")


def enter(group):
    """Moves this process into `group`, made where it is missing."""
    for root, kind, options in _hierarchies():
        if kind == "cgroup2":
            # Allowed in the root group only, and done already where systemd runs the machine.
            with contextlib.suppress(OSError):
                controllers = (root / "cgroup.controllers").read_text().split()
                (root / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in controllers))
        place = root / group
        place.mkdir(exist_ok=True)
        if "cpuset" in options:
            for file in ("cpuset.cpus", "cpuset.mems"):
                if not (place / file).read_text().strip():
                    (place / file).write_text((root / file).read_text())
            (place / "cgroup.clone_children").write_text("1")
        (place / "cgroup.procs").write_text(str(os.getpid()))


@contextlib.contextmanager
def within(group):
    """Is in `group` for a while with all it starts, so that what a SIGKILL leaves running can be
    found. One hierarchy is enough for that."""
    root, kind, _ = _hierarchies()[0]
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, before = line.split(":", 2)
        if (kind == "cgroup2" and not controllers) or root.name in controllers.split(","):
            break
    else:
        before = "/"
    (root / group).mkdir(exist_ok=True)
    (root / group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield group
    finally:
        with contextlib.suppress(OSError):
            (root / before.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))
        remove(group)


def leave():
    """Moves this process back to the root of every hierarchy."""
    for root, _, _ in _hierarchies():
        with contextlib.suppress(OSError):
            (root / "cgroup.procs").write_text(str(os.getpid()))


def has(group, pid):
    """Whether `pid` lives and is in `group`."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return any(line.split(":", 2)[2].strip("/").split("/")[0] == group for line in lines)


def of_bed(bed):
    """All groups of a bed."""
    found = set()
    for root, _, _ in _hierarchies():
        found.update(place.name for place in root.glob(f"{PREFIX}.{bed}.*"))
    return sorted(found)


def members(group):
    """The processes of a group and of the groups below."""
    pids = set()
    for root, _, _ in _hierarchies():
        for directory, _, files in os.walk(root / group):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    pids.update(map(int, Path(directory, "cgroup.procs").read_text().split()))
    # 0 is a process of a PID namespace that is not ours.
    return pids - {0}


def kill(group, patience=20):
    """SIGKILLs all processes of a group until none is left; True if none is."""
    end = time.monotonic() + patience
    while pids := members(group) - {os.getpid()}:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def remove(group):
    """Removes an empty group from every hierarchy; True if it is gone."""
    for _ in range(100):
        left = False
        for root, _, _ in _hierarchies():
            for directory, _, _ in os.walk(root / group, topdown=False):
                try:
                    os.rmdir(directory)
                except FileNotFoundError:
                    pass
                except OSError:
                    left = True
        if not left:
            return True
        time.sleep(0.02)
    return False
