"""The command line of `imgctl testbed`, and of scripts/testbed, which needs no binary. The help is in
src/cli/commands/testbed.rs."""

import argparse
import json
import os
import shutil
import sys

import life
import network
import template
from failure import PROGRAM, Failed
from store import PASSWORD, STATE, USERS, beds, locked

# Each tool and the Debian package that brings it.
TOOLS = {
    "systemd-nspawn": "systemd-container",
    "debootstrap": "debootstrap",
    **dict.fromkeys(("ip", "bridge", "tc"), "iproute2"),
    "nft": "nftables",
    **dict.fromkeys(("nsenter", "setpriv", "unshare"), "util-linux"),
    "losetup": "mount",
    **dict.fromkeys(("ssh", "ssh-keygen"), "openssh-client"),
    "mkfs.ext4": "e2fsprogs",
}
# As many control planes as a cluster of N hosts usually has.
MOST_MASTERS = 3


def arguments():
    """The parsed command line."""
    parser = argparse.ArgumentParser(prog=PROGRAM, epilog="docs/testbed.md says more.")
    parser.add_argument("--json", action="store_true", help="results and errors as JSON")
    parser.add_argument("--quiet", action="store_true", help="no notes")
    parser.add_argument(
        "--name",
        default=os.environ.get("TESTBED_NAME", "default"),
        help='which test bed (default: $TESTBED_NAME or "default")',
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name, says, *operands):
        found = verbs.add_parser(name, help=says, description=says)
        for operand in operands:
            found.add_argument(operand)
        return found

    up = verb("up", "start hosts h1 to hN, making what is missing")
    up.add_argument("count", metavar="N", type=int)
    of_template(up)
    up.add_argument("--disk", type=int, default=0, metavar="MB", help="size of each new /var/lib")
    up.add_argument("--owner", type=int, metavar="PID",
                    help="take the bed down when this process ends")
    down = verb("down", "remove the test bed with all that is in it")
    down.add_argument("--all", action="store_true", help="every test bed")
    show = verb("list", "show the hosts")
    show.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
    show.add_argument("--all", action="store_true", help="every test bed")
    ssh = verb("ssh", "log in to HOST or USER@HOST, or run a command there", "host")
    ssh.add_argument("command", nargs=argparse.REMAINDER)
    run = verb("exec", "run a command without the network: one shell line, or words", "host")
    run.add_argument("command", nargs=argparse.REMAINDER)
    for name, says in (("cut", "cut a host off, or two hosts from each other"),
                       ("heal", "undo cut; without a host, all of them")):
        found = verb(name, says)
        found.add_argument("host", nargs="?" if name == "heal" else None)
        found.add_argument("other", nargs="?")
    verb("rate", "limit a port in both directions; 0 is no limit", "host", "mbit")
    verb("kill", "lose a host: all its processes, without a word to its peers", "host")
    verb("start", "switch a host on", "host")
    verb("stop", "switch a host off in good order", "host")
    verb("reboot", "reboot a host and wait for it", "host")
    verb("disk", "give /var/lib a size in MB; 0 is the machine's disk", "host", "megabytes")
    make = verb("template", "make the template and say where it is")
    of_template(make)
    verb("prune", "remove templates that neither a bed nor this checkout uses")
    return parser.parse_args()


def of_template(parser):
    """Adds the flags that say what the hosts are, and where that comes from."""
    parser.add_argument("--release", choices=template.RELEASES, default="",
                        help=f"the release of Debian that hosts have (default: {template.RELEASE})")
    parser.add_argument("--hardened", action="store_true",
                        help="hosts as the benchmarks of CIS and STIG want them")
    parser.add_argument("--with", dest="extra", default="", metavar="PACKAGES",
                        help="comma-separated Debian packages more; containerd brings runc and CNI")
    parser.add_argument("--mirror", default=os.environ.get("TESTBED_MIRROR", template.MIRROR),
                        metavar="URL", help="the Debian mirror of the hosts' system")


def main(chosen):
    """Does what the command line says; returns the exit code."""
    os.umask(0o022)
    if os.geteuid() != 0:
        raise Failed("hosts need namespaces, mounts and devices", f"run it as root: sudo {PROGRAM} …",
                     kind="denied", code=5)
    # Those of the administrator are not in the path of every user that became root.
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        wanted = " ".join(sorted({TOOLS[tool] for tool in missing}))
        raise Failed(f"not installed: {', '.join(missing)}", f"apt-get install {wanted}")
    return VERBS[chosen.verb](chosen) or 0


def sayer(chosen):
    """Tells the person what takes long."""

    def say(text):
        if not chosen.quiet and not chosen.json:
            print(f"testbed: {text}", file=sys.stderr, flush=True)

    return say


def words(text):
    """The parts of a comma-separated list."""
    return sorted({word.strip() for word in text.split(",")} - {""})


def system(chosen):
    """What the hosts shall be; None if no flag says anything."""
    if not (chosen.release or chosen.extra or chosen.hardened):
        return None
    return template.System(chosen.release or template.RELEASE, tuple(words(chosen.extra)), chosen.hardened)


def up(chosen):
    bed = life.up(chosen.name, chosen.count, system(chosen), chosen.disk, chosen.owner,
                  sayer(chosen), chosen.mirror)
    if chosen.json:
        print(json.dumps(describe(bed), indent=2))
        return
    table(bed)
    if not chosen.quiet:
        print(f"\nimgctl run IMAGE {run_flags(bed)}")


def down(chosen):
    for name in [bed.name for bed in beds()] if chosen.all else [chosen.name]:
        life.down(name)


def describe(bed):
    """The bed as `list --json` shows it."""
    settings = bed.settings()
    return {
        "name": bed.name,
        "state_directory": str(bed.place),
        "release": bed.system.release,
        "hardened": bed.system.hardened,
        "network": f"{network.NET}.{bed.subnet}.0/24",
        "controller": {
            "ip": network.address(bed.subnet, 1),
            "ip6": network.address6(bed.subnet, 1),
            "interface": f"itb{bed.subnet}",
            "cut": network.CONTROLLER in settings["cut"],
            "rate_mbit": settings["rate"].get(network.CONTROLLER, 0),
        },
        "hosts": [machine.describe() for machine in life.machines(bed)],
        "apart": settings["apart"],
        "key": str(bed.key),
        "known_hosts": str(bed.known_hosts),
        "users": list(USERS),
        "run_flags": run_flags(bed),
        "password": PASSWORD,
    }


def table(bed):
    """The bed for people."""
    shown = describe(bed)
    unusual = f", {bed.system.describe()}" if bed.system != template.System() else ""
    print(f"test bed {bed.name}: {shown['network']}, this machine is {shown['controller']['ip']}{unusual}")
    for host in shown["hosts"]:
        notes = [host["state"]]
        notes += ["cut"] if host["cut"] else []
        notes += [f"{host['rate_mbit']} Mbit/s"] if host["rate_mbit"] else []
        print(f"  {host['name']:<5} {host['ip']:<15} {', '.join(notes)}")
    print(f"  key {shown['key']}; users {', '.join(shown['users'])}, password {PASSWORD}")


def usual_user(bed):
    """Who logs in if nobody is named: root may not log in to hardened hosts."""
    return "deploy" if bed.system.hardened else "root"


def run_flags(bed):
    """The flags of `imgctl run` for all hosts of the bed."""
    ips = [machine.ip for machine in life.machines(bed)]
    masters = ips[:MOST_MASTERS] if len(ips) >= MOST_MASTERS else ips[:1]
    nodes = ips[len(masters):]
    flags = [f"--masters {','.join(masters)}"]
    flags += [f"--nodes {','.join(nodes)}"] if nodes else []
    flags += [f"--user {usual_user(bed)}"] if bed.system.hardened else []
    return " ".join([*flags, f"--pk {bed.key}", f"--known-hosts {bed.known_hosts}"])


def show(chosen):
    found = beds() if chosen.all else [life.existing(chosen.name)]
    if chosen.json:
        shown = [describe(bed) for bed in found]
        print(json.dumps(shown if chosen.all else shown[0], indent=2))
    else:
        for bed in found:
            table(bed)


def ssh(chosen):
    bed = life.existing(chosen.name)
    user, _, host = chosen.host.rpartition("@")
    machine = life.find(bed, host)
    options = ["-i", str(bed.key), "-o", "IdentitiesOnly=yes", "-F", "none"]
    options += ["-o", f"UserKnownHostsFile={bed.known_hosts}", "-o", "StrictHostKeyChecking=yes"]
    os.execvp("ssh", ["ssh", *options, f"{user or usual_user(bed)}@{machine.ip}", *chosen.command])


def execute(chosen):
    machine = life.find(life.existing(chosen.name), chosen.host)
    command = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
    line = machine.enter(command or ["bash", "-l"])
    os.execvp(line[0], line)


def port(bed, host):
    """The name of a host's or the controller's port."""
    return host if host == network.CONTROLLER else life.find(bed, host).name


def shape(chosen, change):
    """Changes the settings by `change`, then applies them to all ports."""
    with locked(chosen.name):
        bed = life.existing(chosen.name)
        settings = bed.settings()
        touched = change(bed, settings)
        bed.set(settings)
        for name in touched:
            network.Network(bed).apply(name)


def cut(chosen):
    def change(bed, settings):
        one = port(bed, chosen.host)
        if chosen.other:
            pair = sorted([one, port(bed, chosen.other)])
            if pair not in settings["apart"]:
                settings["apart"].append(pair)
        elif one not in settings["cut"]:
            settings["cut"].append(one)
        return [one]

    shape(chosen, change)


def heal(chosen):
    def change(bed, settings):
        if chosen.host is None:
            touched = [*settings["cut"], *(one for one, _ in settings["apart"])]
            settings["cut"], settings["apart"] = [], []
            return touched
        one = port(bed, chosen.host)
        if chosen.other:
            pair = sorted([one, port(bed, chosen.other)])
            settings["apart"] = [known for known in settings["apart"] if known != pair]
        else:
            settings["cut"] = [known for known in settings["cut"] if known != one]
            settings["apart"] = [known for known in settings["apart"] if one not in known]
        return [one]

    shape(chosen, change)


def rate(chosen):
    def change(bed, settings):
        name = port(bed, chosen.host)
        settings["rate"].pop(name, None)
        if whole(chosen.mbit):
            settings["rate"][name] = whole(chosen.mbit)
        return [name]

    shape(chosen, change)


def whole(text):
    """A number that is 0 or more."""
    if not text.isdigit():
        raise Failed(f"{text!r} is no whole number")
    return int(text)


def one_host(action):
    """A verb that does one thing to one host, alone."""

    def verb(chosen):
        with locked(chosen.name):
            action(life.find(life.existing(chosen.name), chosen.host), chosen)

    return verb


def start(machine, _):
    if machine.state() == "stopped":
        machine.start()
    machine.wait()


def make_template(chosen):
    root = template.template(system(chosen) or template.System(), sayer(chosen), chosen.mirror)
    print(json.dumps({"template": str(root)}) if chosen.json else root)


def prune(_):
    used = {bed.template.parent.name for bed in beds()}
    for release in template.RELEASES:
        used |= {template.System(release, (), hardened).recipe() for hardened in (False, True)}
    for name in template.prune(used):
        print(f"removed {template.CACHE / name}")


VERBS = {
    "up": up,
    "down": down,
    "list": show,
    "ssh": ssh,
    "exec": execute,
    "cut": cut,
    "heal": heal,
    "rate": rate,
    "kill": one_host(lambda machine, _: machine.kill()),
    "start": one_host(start),
    "stop": one_host(lambda machine, _: machine.stop()),
    "reboot": one_host(lambda machine, _: machine.reboot()),
    "disk": one_host(lambda machine, chosen: machine.resize(whole(chosen.megabytes))),
    "template": make_template,
    "prune": prune,
}


if __name__ == "__main__":
    asked = arguments()
    try:
        sys.exit(main(asked))
    except Failed as failure:
        failure.show(asked.json)
        sys.exit(failure.code)
    except KeyboardInterrupt:
        Failed(f"interrupted; {STATE} has what is there so far",
               f"the same command continues; {PROGRAM} --name {asked.name} down removes it",
               kind="interrupted").show(asked.json)
        sys.exit(130)
