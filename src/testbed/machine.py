"""One host of a bed: its files, its life and what it says about itself.

Its root is an overlay over the template; /var/lib is a plain directory (or a file system of a size),
because overlays of containerd and of imgctl do not work on an overlay."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import groups
from failure import PROGRAM, Failed
from network import Network, address, address6, run
from store import write

HERE = Path(__file__).resolve().parent
# Boots take 2 s on an idle machine.
PATIENCE = float(os.environ.get("TESTBED_TIMEOUT", "120"))
DISK_STEP = "/run/testbed/disk"


def tree_size(directory):
    """The space that the files below a directory take, in bytes."""
    size = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += os.lstat(os.path.join(place, name)).st_blocks * 512
    return size


class Machine:
    """A host by its name, `h1` and so on."""

    def __init__(self, bed, name):
        self.bed = bed
        self.name = name
        self.place = bed.place / "hosts" / name
        self.group = groups.name(bed.name, name)

    @property
    def number(self):
        """The last byte of the IPv4 address."""
        return 10 + int(self.name[1:])

    @property
    def ip(self):
        """The IPv4 address."""
        return address(self.bed.subnet, self.number)

    @property
    def ip6(self):
        """The IPv6 address."""
        return address6(self.bed.subnet, self.number)

    def make(self):
        """Makes the files that are this host's own: names, machine-id, host keys, /var/lib."""
        unfinished = self.place.with_name(f".{self.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        for part in ("upper/etc/ssh", "work", "root"):
            (unfinished / part).mkdir(parents=True)
        etc = unfinished / "upper/etc"
        identity = uuid.uuid4()
        (unfinished / "identity").write_text(str(identity))
        (etc / "machine-id").write_text(f"{identity.hex}\n")
        (etc / "machine-id").chmod(0o444)
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "hosts").write_text(
            f"127.0.0.1\tlocalhost\n127.0.1.1\t{self.name}\n\n"
            "::1\tlocalhost ip6-localhost ip6-loopback\n"
        )
        ssh = etc / "ssh"
        shutil.copyfile(f"{self.bed.key}.pub", ssh / "testbed_authorized_keys")
        for kind in ("ed25519", "ecdsa"):
            run("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", f"root@{self.name}",
                "-f", str(ssh / f"ssh_host_{kind}_key"))
        run("cp", "-a", "--reflink=auto", str(self.bed.template / "var/lib"),
            str(unfinished / "varlib"))
        os.rename(unfinished, self.place)

    def host_keys(self):
        """The lines of a known_hosts file for this host."""
        lines = []
        for key in sorted((self.place / "upper/etc/ssh").glob("ssh_host_*_key.pub")):
            kind, data, *_ = key.read_text(encoding="ascii").split()
            lines += [f"{ip} {kind} {data}\n" for ip in (self.ip, self.ip6)]
        return lines

    def status(self):
        """What the keeper last wrote; empty if it never ran."""
        try:
            return json.loads((self.place / "status.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return {}

    def state(self):
        """`running`, `starting` or `stopped`."""
        status = self.status()
        if not groups.has(self.group, status.get("keeper", 0)):
            return "stopped"
        return "running" if status.get("ready") else "starting"

    def first_process(self):
        """The PID, on this machine, of the host's systemd; None if there is none."""
        leader = self.status().get("leader")
        return leader if leader and groups.has(self.group, leader) else None

    def start(self):
        """Switches the host on; `wait` tells when it is up."""
        self.sweep()
        with open(self.place / "keeper.log", "wb") as log:
            subprocess.Popen(
                [sys.executable, "-B", str(HERE / "keeper.py"), self.bed.name, self.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, boots=1):
        """Waits until the host has finished that many boots since it was switched on."""
        end = time.monotonic() + PATIENCE
        seen = False
        while True:
            status = self.status()
            if status.get("ready") and status.get("boots", 0) >= boots:
                return
            alive = self.state() != "stopped"
            if (seen and not alive) or time.monotonic() > end:
                raise Failed(f"host {self.name} does not come up; {self._last_words()}")
            seen = seen or alive
            time.sleep(0.02)

    def _last_words(self):
        words = []
        for log in ("keeper.log", "console.log"):
            with contextlib.suppress(OSError):
                lines = (self.place / log).read_text(errors="replace").splitlines()
                words += lines[-15:]
        return f"the end of {self.place}/{{keeper,console}}.log:\n  " + "\n  ".join(words)

    def kill(self):
        """Host loss: the port goes first, so that peers hear nothing of the connections' end."""
        Network(self.bed).unplug(self.name)
        self.sweep()

    def sweep(self):
        """Kills whatever is left of the host."""
        if not groups.kill(self.group):
            raise Failed(f"processes of host {self.name} do not die: {groups.members(self.group)}")
        groups.remove(self.group)
        (self.place / "status.json").unlink(missing_ok=True)

    def way_in(self):
        """The words before a command that run it in the host; None while that is off."""
        pid = self.first_process()
        if pid is None:
            return None
        return [
            # nsenter changes namespaces only: what the host may not do must be said again. Without
            # this a clock that is set "in the host" is this machine's.
            "setpriv", "--bounding-set=-sys_time,-sys_module", "--inh-caps=-sys_time,-sys_module",
            "nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w",
            "env", "-i", "HOME=/root", "LANG=C.UTF-8", f"TERM={os.environ.get('TERM', 'dumb')}",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SHELL=/bin/bash",
            "USER=root",
        ]  # fmt: skip

    def enter(self, command):
        """The command line that runs `command` (one shell line, or words) in the host."""
        way = self.way_in()
        if way is None:
            raise Failed(
                f"host {self.name} is {self.state()}",
                f"{PROGRAM} --name {self.bed.name} start {self.name} switches it on",
            )
        return [*way, *(["bash", "-c", command[0]] if len(command) == 1 else command)]

    def run(self, line, check=True):
        """Runs a shell line in the host."""
        return run(*self.enter([line]), check=check)

    def reboot(self):
        """Reboots the way a person would and waits until the host is up again."""
        boots = self.status().get("boots", 0)
        self.run("systemctl reboot", check=False)
        self.wait(boots + 1)

    def stop(self):
        """Switches the host off the way a person would."""
        self.run("systemctl poweroff", check=False)
        end = time.monotonic() + PATIENCE
        while self.state() != "stopped":
            if time.monotonic() > end:
                raise Failed(f"host {self.name} does not stop; {self._last_words()}")
            time.sleep(0.05)

    def resize(self, megabytes):
        """Puts /var/lib on a file system of that size, with what is there now; 0 gives it the
        machine's disk again. A running host keeps running."""
        image = self.place / "disk.img"
        used = tree_size(self.place / "varlib")
        if megabytes and used > megabytes << 20:
            raise Failed(f"/var/lib of {self.name} has {(used >> 20) + 1} MB: {megabytes} MB are too few",
                         "name a size that leaves room for it, or 0 for the machine's disk")
        running = self.first_process() is not None
        if image.exists():
            if running:
                self.run("umount -l /var/lib")
            image.unlink()
        if not megabytes:
            return
        unfinished = self.place / ".disk.img.unfinished"
        with open(unfinished, "wb") as file:
            file.truncate(megabytes << 20)
        run("mkfs.ext4", "-q", "-m", "0", "-d", str(self.place / "varlib"), str(unfinished))
        os.rename(unfinished, image)
        if running:
            self._mount_disk(image)

    def _mount_disk(self, image):
        device = run("losetup", "--find", "--show", str(image)).stdout.strip()
        try:
            number = os.stat(device).st_rdev
            self.run(
                f"set -e; n=/dev/.testbed-disk; rm -f $n; "
                f"mknod $n b {os.major(number)} {os.minor(number)}; "
                f"mount $n /var/lib; rm $n"
            )
        finally:
            # Detached once nothing has it mounted any more.
            run("losetup", "--detach", device, check=False)

    def describe(self):
        """The host as `list --json` shows it."""
        settings = self.bed.settings()
        return {
            "name": self.name,
            "ip": self.ip,
            "ip6": self.ip6,
            "port": 22,
            "state": self.state(),
            "pid": self.first_process(),
            "way_in": self.way_in(),
            "var_lib": None if (self.place / "disk.img").exists() else str(self.place / "varlib"),
            "cut": self.name in settings["cut"],
            "rate_mbit": settings["rate"].get(self.name, 0),
        }
