"""The network of a bed: a switch in a network namespace of its own, a port for the controller (this
machine) and one for each host. Addresses are 10.77.K.0/24 and fd77:0:0:K::/64, K chosen per bed.

The switch is not in this machine's namespace, so that firewalls and bridge settings here (Docker's,
say) do not reach into it."""

import ipaddress
import os
import subprocess
from pathlib import Path

from failure import Failed

NET = os.environ.get("TESTBED_NET", "10.77")
CONTROLLER = "controller"
# Bridge port states: nothing passes, all passes.
DISABLED, FORWARDING = 0, 3


def run(*command, text=None, check=True):
    """Runs a tool; its own words are the error."""
    done = subprocess.run(
        command, input=text, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if check and done.returncode != 0:
        words = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise Failed(f"{' '.join(command)}: {words}")
    return done


def subnets_in_use():
    """Every K that an interface of this machine has, or that a bed's interface is named after."""
    used = set()
    for line in run("ip", "-o", "-4", "route", "show", "table", "all").stdout.splitlines():
        for word in line.split():
            if word.startswith(f"{NET}."):
                used.add(int(word.split(".")[2]))
    for interface in os.listdir("/sys/class/net"):
        if interface.startswith("itb") and interface[3:].isdigit():
            used.add(int(interface[3:]))
    return used


def address(k, number):
    """The IPv4 address of a port; 1 is the controller, host hN has 10+N."""
    return f"{NET}.{k}.{number}"


def address6(k, number):
    """The IPv6 address of a port, its last group spelled like the IPv4 address's last byte."""
    return str(ipaddress.ip_address(f"fd77:0:0:{k}::{number}"))


class Network:
    """The switch and the ports of one bed."""

    def __init__(self, bed):
        self.bed = bed
        self.k = bed.subnet
        self.switch = self.namespace("switch")
        self.uplink = f"itb{self.k}"

    def namespace(self, part):
        """The name of the namespace of the switch or of a host."""
        return f"itb.{self.bed.name}.{part}"

    def exists(self):
        """Whether the switch and the controller's port are there."""
        return (
            Path("/run/netns", self.switch).exists()
            and Path("/sys/class/net", self.uplink).exists()
        )

    def up(self):
        """Makes the switch and the controller's port."""
        if self.exists():
            return
        self.down()
        run("ip", "netns", "add", self.switch)
        self._in(self.switch, "link set lo up", "link add switch type bridge mcast_snooping 0",
                 "link set switch up")
        run("ip", "link", "add", self.uplink, "type", "veth",
            "peer", "name", CONTROLLER, "netns", self.switch)
        self._in(self.switch, f"link set {CONTROLLER} master switch up")
        self._address(None, self.uplink, 1)
        self.apply(CONTROLLER)

    def down(self):
        """Removes all that a bed of this name may have in the kernel's network."""
        run("ip", "link", "del", self.uplink, check=False)
        for namespace in namespaces(self.bed.name):
            run("ip", "netns", "del", namespace, check=False)

    def plug(self, host):
        """A fresh namespace for `host` with its port: routes, rules and sockets of before are
        gone, as on a machine that was off."""
        self.unplug(host)
        namespace = self.namespace(host)
        run("ip", "netns", "add", namespace)
        number = 10 + int(host[1:])
        mac = f"02:77:{self.k:02x}:00:{number >> 8:02x}:{number & 255:02x}"
        run("ip", "-n", self.switch, "link", "add", host, "type", "veth",
            "peer", "name", "eth0", "address", mac, "netns", namespace)
        self._in(self.switch, f"link set {host} master switch up")
        self._in(namespace, "link set lo up")
        self._address(namespace, "eth0", number)
        self._in(namespace, f"route add default via {address(self.k, 1)}")
        self.apply(host)

    def unplug(self, host):
        """Takes the port away first, so that no peer hears of the connections that end."""
        run("ip", "-n", self.switch, "link", "del", host, check=False)
        run("ip", "netns", "del", self.namespace(host), check=False)

    def apply(self, port):
        """Gives a port the shape and the cuts that the bed's settings ask for."""
        if not self.plugged(port):
            return
        settings = self.bed.settings()
        state = DISABLED if port in settings["cut"] else FORWARDING
        run("ip", "netns", "exec", self.switch, "bridge", "link", "set", "dev", port,
            "state", str(state))
        self._apart(settings["apart"])
        self._rate(port, settings["rate"].get(port, 0))

    def plugged(self, port):
        """Whether the port is there."""
        return run("ip", "-n", self.switch, "link", "show", port, check=False).returncode == 0

    def _rate(self, port, mbit):
        if port == CONTROLLER:
            far = ["tc", "qdisc"], self.uplink
        else:
            far = ["tc", "-n", self.namespace(port), "qdisc"], "eth0"
        for command, device in (far, (["tc", "-n", self.switch, "qdisc"], port)):
            if mbit:
                # Enough for 4 ms, which is a timer tick of the slowest usual kernel.
                burst = max(128 << 10, mbit * 500)
                run(*command, "replace", "dev", device, "root", "tbf", "rate", f"{mbit}mbit",
                    "burst", str(burst), "latency", "50ms")
            else:
                run(*command, "del", "dev", device, "root", check=False)

    def _apart(self, pairs):
        rules = "".join(
            f'iifname "{one}" oifname "{other}" drop\niifname "{other}" oifname "{one}" drop\n'
            for one, other in pairs
        )
        present = run("ip", "netns", "exec", self.switch, "nft", "list", "tables", check=False)
        if not rules and "testbed" not in present.stdout:
            return
        run("ip", "netns", "exec", self.switch, "nft", "-f", "-", text=(
            "table bridge testbed\ndelete table bridge testbed\n"
            "table bridge testbed {\nchain forward {\n"
            f"type filter hook forward priority 0; policy accept;\n{rules}}}\n}}\n"
        ))

    def _address(self, namespace, device, number):
        batch = [f"addr add {address(self.k, number)}/24 dev {device}", f"link set {device} up"]
        self._in(namespace, *batch)
        if Path("/proc/net/if_inet6").exists():
            # A machine may have IPv6 but switched off; then the bed has IPv4 only.
            target = ["-n", namespace] if namespace else []
            run("ip", *target, "addr", "add", f"{address6(self.k, number)}/64", "dev", device,
                "nodad", check=False)

    @staticmethod
    def _in(namespace, *lines):
        target = ["-n", namespace] if namespace else []
        run("ip", *target, "-batch", "-", text="".join(f"{line}\n" for line in lines))


def namespaces(bed):
    """All network namespaces of a bed of this name, also of one that was left half-made."""
    place = Path("/run/netns")
    return sorted(found.name for found in place.glob(f"itb.{bed}.*")) if place.is_dir() else []
