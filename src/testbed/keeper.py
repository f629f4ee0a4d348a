"""The process that keeps one host: plugs it in, boots it in systemd-nspawn, boots it again when it
asked for a reboot, and notes when it is up. It lives in the host's control group, and dies with it.

    keeper.py BED HOST"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading

import groups
from machine import Machine
from network import Network
from store import Bed, write

# Mounts that go when the host does, because they are in a mount namespace of its own.
BOOT = """
set -e
root=$1 options=$2 disk=$3 varlib=$4
shift 4
mount -t overlay testbed -o "$options" "$root"
if [ -e "$disk" ]; then mount -o loop "$disk" "$varlib"; fi
exec "$@"
"""
ASKED_FOR_REBOOT = 133


def nspawn(machine, varlib):
    """The command line of a boot."""
    bed = machine.bed
    words = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--notify-ready=yes"]
    words += [f"--directory={machine.place / 'root'}", f"--machine={bed.name}-{machine.name}"]
    words += [f"--hostname={machine.name}", f"--uuid={(machine.place / 'identity').read_text()}"]
    words += [f"--network-namespace-path=/run/netns/{Network(bed).namespace(machine.name)}"]
    # A clock that is set in a host is the machine's.
    words += ["--capability=all", "--drop-capability=CAP_SYS_TIME,CAP_SYS_MODULE"]
    words += ["--system-call-filter=@keyring @mount @privileged bpf"]
    words += ["--resolv-conf=off", "--timezone=off", "--link-journal=no", "--console=pipe"]
    words += ["--kill-signal=SIGRTMIN+3", f"--bind={varlib}:/var/lib"]
    words += [f"--bind={device}" for device in ("/dev/kmsg", "/dev/fuse") if os.path.exists(device)]
    return [*words, "/sbin/testbed-init", "systemd.log_color=0"]


class Notes:
    """status.json, kept while the host says what becomes of it."""

    def __init__(self, machine):
        self.path = machine.place / "status.json"
        self.known = {"keeper": os.getpid(), "boots": 0, "leader": None, "ready": False}
        self.lock = threading.Lock()

    def change(self, **changes):
        """Writes what changed."""
        with self.lock:
            self.known |= changes
            write(self.path, json.dumps(self.known))

    def listen(self, channel):
        """Follows what systemd-nspawn says about one boot."""
        while message := channel.recv(65536).decode(errors="replace"):
            for line in message.splitlines():
                key, _, value = line.partition("=")
                if key == "X_NSPAWN_LEADER_PID":
                    self.change(leader=int(value))
                elif line == "READY=1":
                    self.change(ready=True, boots=self.known["boots"] + 1)


def boot(machine, notes):
    """One boot from power-on to the end; returns systemd-nspawn's exit code."""
    place = machine.place
    Network(machine.bed).plug(machine.name)
    path = place / "notify"
    path.unlink(missing_ok=True)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.bind(str(path))
    threading.Thread(target=notes.listen, args=(channel,), daemon=True).start()
    # What is on the overlay need not survive a crash of this machine; a crash of the host it does.
    shutil.rmtree(place / "work", ignore_errors=True)
    (place / "work").mkdir()
    overlay = f"lowerdir={machine.bed.template},upperdir={place}/upper,workdir={place}/work,volatile"
    varlib = place / "varlib"
    command = ["unshare", "--mount", "bash", "-c", BOOT, "boot"]
    command += [str(place / "root"), overlay, str(place / "disk.img"), str(varlib)]
    command += nspawn(machine, varlib)
    environment = {
        "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        "LC_ALL": "C.UTF-8",
        "NOTIFY_SOCKET": str(path),
        "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1",
        "SYSTEMD_NSPAWN_USE_CGNS": "1",
        "SYSTEMD_NSPAWN_TMPFS_TMP": "0",
    }
    with open(place / "console.log", "wb") as console:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            check=False,
        )
    with contextlib.suppress(OSError):
        # An empty message ends the listener.
        channel.sendto(b"", str(path))
    notes.change(leader=None, ready=False)
    return done.returncode


def main():
    """Keeps the host until it is switched off."""
    os.umask(0o022)
    bed = Bed(sys.argv[1])
    machine = Machine(bed, sys.argv[2])
    groups.enter(machine.group)
    notes = Notes(machine)
    notes.change()
    while (code := boot(machine, notes)) == ASKED_FOR_REBOOT:
        pass
    Network(bed).unplug(machine.name)
    sys.exit(code)


if __name__ == "__main__":
    main()
