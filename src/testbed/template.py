"""The file system every host starts from: made once by debootstrap, kept in a cache, never changed.

A template's name is the digest of its recipe, so that another recipe is another template and hosts
of an older checkout keep theirs."""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import groups
from failure import Failed

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("TESTBED_CACHE", "/var/cache/imgctl-testbed"))
# The releases of Debian that hosts may have, and the script of debootstrap for each: that of the machine may be older
# than the release.
RELEASES = {"bullseye": "bullseye", "bookworm": "bookworm", "trixie": "trixie", "forky": "sid"}
RELEASE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
SCRIPTS = Path("/usr/share/debootstrap/scripts")

PACKAGES = """
    systemd systemd-sysv dbus libnss-myhostname kmod procps util-linux mount hostname sudo less
    openssh-server openssh-client ca-certificates curl jq rsync tar gzip xz-utils busybox-static
    iproute2 iptables nftables ipset conntrack ebtables ethtool socat iputils-ping
""".split()

# What "--with containerd" means. Not there by default: the check scripts of many cluster images
# refuse a host that has a container runtime.
SETS = {"containerd": ["containerd", "runc", "containernetworking-plugins"]}


@dataclasses.dataclass(frozen=True)
class System:
    """What the hosts of a bed are: a release of Debian, further packages, and whether they are hardened."""

    release: str = RELEASE
    extra: tuple = ()
    hardened: bool = False

    def packages(self):
        """All packages, sets spelled out."""
        wanted = set(PACKAGES)
        for name in self.extra:
            wanted.update(SETS.get(name, [name]))
        return sorted(wanted)

    def recipe(self):
        """The digest of everything that decides what the template looks like."""
        digest = hashlib.sha256()
        for part in (self.release, " ".join(self.packages()), os.uname().release, os.uname().machine):
            digest.update(part.encode() + b"\0")
        for name in ["customise", *(["harden"] if self.hardened else []), "first-process"]:
            digest.update((HERE / name).read_bytes() + b"\0")
        return digest.hexdigest()[:16]

    def describe(self):
        """The system as a person calls it."""
        words = [f"Debian {self.release}", *(["hardened"] if self.hardened else [])]
        words += [f"with {','.join(self.extra)}"] if self.extra else []
        return " ".join(words)


def template(system, say, mirror=MIRROR):
    """The root of the template of `system`; makes it from `mirror` if it is not there. One
    process makes, others wait for it."""
    place = CACHE / system.recipe()
    root = place / "root"
    if root.is_dir():
        return root
    # A hardened template is a copy of another one.
    base = template(dataclasses.replace(system, hardened=False), say, mirror) if system.hardened else None
    CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    with open(CACHE / f"{place.name}.lock", "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another test bed that makes the template")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if root.is_dir():
            return root
        unfinished = CACHE / f"{place.name}.unfinished"
        group = f"{groups.PREFIX}-template.{place.name}"
        # Of a maker that was killed.
        groups.kill(group)
        _remove(unfinished)
        source = mirror if base is None else "the template without --hardened"
        takes = "2 to 4 minutes" if base is None else "seconds"
        say(f"making the template of hosts with {system.describe()} from {source}: once, {takes}, "
            f"140 to 400 MB in {CACHE}")
        try:
            with groups.within(group):
                _make(unfinished, system, mirror, base)
        except BaseException:
            with contextlib.suppress(OSError):
                _remove(unfinished)
            raise
        os.rename(unfinished, place)
    return root


def _script(system):
    """debootstrap's script for the release; those of Debian are all the same for these releases, so that an
    older debootstrap without it takes that of the newest."""
    own = SCRIPTS / RELEASES[system.release]
    return own if own.exists() else SCRIPTS / "sid"


def _make(place, system, mirror, base):
    root = place / "root"
    root.mkdir(parents=True)
    place.chmod(0o755)
    log = place / "log"
    # In a mount namespace of its own, so that what is mounted goes however this ends.
    command = ["unshare", "--mount", "sh", "-c"]
    if base is None:
        script = (
            'set -e; umask 022; debootstrap --variant=minbase --include="$1" "$2" "$3" "$4" "$5"; '
            'exec "$6" "$3"'
        )
        command += [script, "sh", ",".join(system.packages()), system.release, str(root), mirror]
        command += [str(_script(system)), str(HERE / "customise")]
    else:
        command += ['set -e; cp -a --reflink=auto "$1/." "$2"; exec "$3" "$2"', "sh", str(base), str(root)]
        command += [str(HERE / "harden")]
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    # Where mirrors are reached through a proxy, debootstrap must know it.
    environment |= {name: value for name, value in os.environ.items() if "proxy" in name.lower()}
    with open(log, "wb") as output:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        end = log.read_text(errors="replace").splitlines()[-20:]
        what, hint = f"the copy of {base}", None
        if base is None:
            what = f"debootstrap of {system.release} from {mirror}"
            hint = "look whether this machine reaches the mirror, or name another one with --mirror"
        raise Failed(f"{what} failed; the end of its log:\n  " + "\n  ".join(end), hint)


def _remove(place):
    if place.exists():
        shutil.rmtree(place)


def prune(in_use):
    """Removes templates but those named in `in_use`; returns what went."""
    gone = []
    if not CACHE.is_dir():
        return gone
    for place in sorted(CACHE.iterdir()):
        # What begins with a dot is no template.
        if place.suffix == ".lock" or place.name in in_use or place.name.startswith("."):
            continue
        with open(CACHE / f"{place.name.split('.')[0]}.lock", "w", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            _remove(place)
            gone.append(place.name)
    return gone
