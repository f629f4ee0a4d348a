"""A bed as a whole: up, down, and the warden that takes a bed down when the process that wanted it
is gone."""

import concurrent.futures
import contextlib
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import groups
import network
from failure import PROGRAM, Failed
from machine import Machine
from network import Network
from store import STATE, Bed, beds, locked, started
from template import MIRROR, System, template

HERE = Path(__file__).resolve().parent
MOST_HOSTS = 200
# Kernels allow a user 128, of which the systemd of a host takes several, and root of every host is one user.
WATCHERS = Path("/proc/sys/fs/inotify/max_user_instances")
ENOUGH_WATCHERS = 2048


def machines(bed):
    """The hosts of a bed."""
    return [Machine(bed, name) for name in bed.host_names()]


def find(bed, host):
    """The host that is meant by `h2`, `2` or an address."""
    for machine in machines(bed):
        if host in (machine.name, machine.name[1:], machine.ip, machine.ip6):
            return machine
    known = ", ".join(bed.host_names()) or "none"
    raise Failed(f"no host {host} in test bed {bed.name} (it has {known})", kind="not-found", code=3)


def existing(name):
    """The bed of that name, which must be there."""
    bed = Bed(name)
    if not bed.known:
        others = ", ".join(known.name for known in beds())
        also = f"; `{PROGRAM} list --all` shows the beds that there are: {others}" if others else ""
        raise Failed(f"there is no test bed {name}", f"{PROGRAM} --name {name} up 3 makes it{also}",
                     kind="not-found", code=3)
    return bed


def up(name, count, system=None, disk=0, owner=None, say=print, mirror=MIRROR):
    """Makes sure that the bed is there and that its hosts h1 to h`count` run. `system` is None for that of the bed
    that is there, or the usual one."""
    if not 0 < count <= MOST_HOSTS:
        raise Failed(f"a test bed has 1 to {MOST_HOSTS} hosts, not {count}")
    sweep()
    _allow_watchers()
    bed = Bed(name)
    # A bed that is there has its template; another one may have become usual since.
    root = bed.template if bed.known and not system else template(system or System(), say, mirror)
    with locked(name), groups.within(groups.name(name, "up")) as group:
        # A keeper that a killed `up` started may not have reached the group of its host yet. It would
        # boot the host beside the keeper that this `up` starts.
        if not groups.kill(group):
            raise Failed(f"processes of {group} do not die: {sorted(groups.members(group))}")
        bed.load()
        if not bed.known:
            bed.create(root, system or System(), owner)
        elif system and system != bed.system:
            raise Failed(
                f"the hosts of test bed {name} have {bed.system.describe()}, not {system.describe()}",
                f"{PROGRAM} --name {name} down removes it",
            )
        if bed.known["owner"] and not groups.members(groups.name(name, "warden")):
            _ward(bed)
        Network(bed).up()
        wanted = [Machine(bed, f"h{number}") for number in range(1, count + 1)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda machine: _start(machine, disk), wanted))
            bed.known_hosts.write_text(
                "".join(line for machine in machines(bed) for line in machine.host_keys())
            )
            list(pool.map(Machine.wait, wanted))
    return bed


def _allow_watchers():
    with contextlib.suppress(OSError, ValueError):
        if int(WATCHERS.read_text(encoding="ascii")) < ENOUGH_WATCHERS:
            WATCHERS.write_text(str(ENOUGH_WATCHERS), encoding="ascii")


def _start(machine, disk):
    if not machine.place.exists():
        machine.make()
        if disk:
            machine.resize(disk)
    if machine.state() == "stopped":
        machine.start()


def down(name):
    """Removes everything a bed of this name has, also one that was left half-made. Whether there
    was anything."""
    bed = Bed(name)
    with locked(name):
        left = groups.of_bed(name)
        spaces = network.namespaces(name)
        unfinished = STATE / f".{name}.unfinished"
        found = bool(left or spaces or bed.place.exists() or unfinished.exists())
        # The ports first: peers of this bed on this machine notice nothing but silence.
        bed.load()
        if bed.known:
            Network(bed).down()
        for group in left:
            if not groups.kill(group):
                raise Failed(f"processes of {group} do not die: {sorted(groups.members(group))}")
        for space in network.namespaces(name):
            network.run("ip", "netns", "del", space, check=False)
        for group in left:
            groups.remove(group)
        for place in (bed.place, unfinished):
            _remove(place)
    with contextlib.suppress(OSError):
        STATE.rmdir()
    return found


def _remove(place):
    if not place.exists():
        return
    try:
        shutil.rmtree(place)
    except OSError:
        # A test may have made files immutable.
        subprocess.run(["chattr", "-R", "-f", "-i", "-a", str(place)], check=False)
        shutil.rmtree(place)


def sweep():
    """Takes down the beds whose owners are gone."""
    for bed in beds():
        if not bed.owned():
            down(bed.name)


def _ward(bed):
    subprocess.Popen(
        [sys.executable, "-B", str(HERE / "warden.py"), bed.name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def ward(name):
    """Waits for the end of the bed's owner, then takes the bed down."""
    bed = Bed(name)
    group = groups.name(name, "warden")
    groups.enter(group)
    owner = bed.known["owner"]
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(owner["pid"])
        if started(owner["pid"]) == owner["started"]:
            select.select([process], [], [])
    groups.leave()
    down(name)
