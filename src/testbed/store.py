"""What a bed is on disk: names, addresses, keys, settings; written so that a kill at any point leaves
something that `down` can remove."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import network
from failure import Failed
from template import System

STATE = Path(os.environ.get("TESTBED_STATE", "/var/lib/imgctl-testbed"))
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
USERS = {
    "root": "key or password",
    "ops": "key or password; sudo asks for the password",
    "deploy": "key or password; sudo asks for nothing",
    "nosudo": "key or password; sudo refuses",
}
PASSWORD = "test"
NO_SETTINGS = {"cut": [], "apart": [], "rate": {}}


def write(path, content):
    """Replaces a file in one step."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(content, encoding="utf-8")
    os.rename(unfinished, path)


@contextlib.contextmanager
def locked(name):
    """Holds the lock of this name (a bed's, or "." for the choice of subnets). Its file goes with
    the holder, so that nothing is left."""
    STATE.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = STATE / f"{name}.lock"
    while True:
        with open(path, "w", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                same = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
            except FileNotFoundError:
                same = False
            if not same:
                continue
            try:
                yield
            finally:
                path.unlink()
            return


def started(pid):
    """When a process began, in ticks: with it, a PID names one process only. None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


class Bed:
    """One bed. `known` is what bed.json says; empty for a bed that is not there."""

    def __init__(self, name):
        if not NAME.fullmatch(name):
            raise Failed(f"{name!r} is no name for a test bed: small letters, digits and -, up to 31")
        self.name = name
        self.place = STATE / name
        self.key = self.place / "key"
        self.known_hosts = self.place / "known_hosts"
        self.known = {}
        self.load()

    def load(self):
        """Reads bed.json again."""
        with contextlib.suppress(FileNotFoundError):
            self.known = json.loads((self.place / "bed.json").read_text(encoding="utf-8"))

    @property
    def subnet(self):
        """K of the bed's addresses."""
        return self.known["subnet"]

    @property
    def template(self):
        """The root that the bed's hosts start from."""
        return Path(self.known["template"])

    @property
    def system(self):
        """What the bed's hosts are."""
        known = self.known
        # A bed of an older program says less.
        return System(known.get("release", "bookworm"), tuple(known["with"]), known.get("hardened", False))

    def owned(self):
        """Whether the bed has no owner or its owner lives."""
        owner = self.known.get("owner")
        return owner is None or started(owner["pid"]) == owner["started"]

    def host_names(self):
        """The hosts that were made, in order."""
        place = self.place / "hosts"
        found = [entry.name for entry in place.glob("h[0-9]*")] if place.is_dir() else []
        return sorted(found, key=lambda name: int(name[1:]))

    def create(self, template, system, owner):
        """Makes the bed's folder, with a subnet that no other bed and no route here has."""
        if owner is not None:
            began = started(owner)
            if began is None:
                raise Failed(f"no process {owner} to own the test bed")
            owner = {"pid": owner, "started": began}
        unfinished = STATE / f".{self.name}.unfinished"
        with locked("."):
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(mode=0o700, parents=True)
            used = network.subnets_in_use() | {bed.subnet for bed in beds()}
            free = next((k for k in range(256) if k not in used), None)
            if free is None:
                raise Failed(
                    f"no subnet of {network.NET}.0.0/16 is free",
                    "set TESTBED_NET to two other bytes, such as 10.78",
                )
            (unfinished / "hosts").mkdir()
            self.known = {
                "name": self.name,
                "subnet": free,
                "template": str(template),
                "release": system.release,
                "hardened": system.hardened,
                "with": list(system.extra),
                "owner": owner,
            }
            write(unfinished / "bed.json", json.dumps(self.known, indent=1))
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"testbed {self.name}",
                 "-f", str(unfinished / "key")],
                stdin=subprocess.DEVNULL,
                check=True,
            )
            os.rename(unfinished, self.place)

    def settings(self):
        """Which ports are cut, which pairs are apart, which rates hold."""
        try:
            return json.loads((self.place / "settings.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return json.loads(json.dumps(NO_SETTINGS))

    def set(self, settings):
        """Keeps other settings; the caller holds the lock and applies them."""
        write(self.place / "settings.json", json.dumps(settings))


def beds():
    """All beds that are there."""
    found = []
    if STATE.is_dir():
        for place in sorted(STATE.iterdir()):
            if NAME.fullmatch(place.name) and (place / "bed.json").is_file():
                bed = Bed(place.name)
                if bed.known:
                    found.append(bed)
    return found
