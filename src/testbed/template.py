"""The file system every host starts from: made once by debootstrap, kept in a cache, never changed.

A template's name is the digest of its recipe, so that another recipe is another template and hosts
of an older checkout keep theirs."""

import contextlib
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
SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"

PACKAGES = """
    systemd systemd-sysv dbus libnss-myhostname kmod procps util-linux mount hostname sudo less
    openssh-server openssh-client ca-certificates curl jq rsync tar gzip xz-utils busybox-static
    iproute2 iptables nftables ipset conntrack ebtables ethtool socat iputils-ping
""".split()

# What "--with containerd" means. Not there by default: the check scripts of many cluster images
# refuse a host that has a container runtime.
SETS = {"containerd": ["containerd", "runc", "containernetworking-plugins"]}


def packages(extra):
    """All packages of a template with `extra` ones, sets spelled out."""
    wanted = set(PACKAGES)
    for name in extra:
        wanted.update(SETS.get(name, [name]))
    return sorted(wanted)


def recipe(extra):
    """The digest of everything that decides what the template looks like."""
    digest = hashlib.sha256()
    for part in (SUITE, " ".join(packages(extra)), os.uname().release, os.uname().machine):
        digest.update(part.encode() + b"\0")
    for name in ("customise", "first-process"):
        digest.update((HERE / name).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def template(extra, say, mirror=MIRROR):
    """The root of the template with `extra` packages; makes it from `mirror` if it is not there. One
    process makes, others wait for it."""
    place = CACHE / recipe(extra)
    root = place / "root"
    if root.is_dir():
        return root
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
        say(f"making the template of the hosts from {mirror}: once, 2 to 3 minutes, 140 MB in {CACHE}")
        try:
            with groups.within(group):
                _make(unfinished, packages(extra), mirror)
        except BaseException:
            with contextlib.suppress(OSError):
                _remove(unfinished)
            raise
        os.rename(unfinished, place)
    return root


def _make(place, names, mirror):
    root = place / "root"
    root.mkdir(parents=True)
    place.chmod(0o755)
    log = place / "log"
    # In a mount namespace of its own, so that what is mounted goes however this ends.
    script = (
        'set -e; umask 022; debootstrap --variant=minbase --include="$1" "$2" "$3" "$4"; '
        'exec "$5" "$3"'
    )
    command = ["unshare", "--mount", "sh", "-c", script, "sh"]
    command += [",".join(names), SUITE, str(root), mirror, str(HERE / "customise")]
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
        raise Failed(
            f"debootstrap of {SUITE} from {mirror} failed; the end of its log:\n  " + "\n  ".join(end),
            "look whether this machine reaches the mirror, or name another one with --mirror",
        )


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
