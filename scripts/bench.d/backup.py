"""scripts/bench backup: a backup of an etcd with 2 GB of data, against `etcdctl snapshot save` and one upload
of the file to the same place, in turn; and a restore of three hosts, by phases.

The peer does the least that gives the same bytes a home: into a registry, the host uploads the file as a
blob and hashes it while it is on its way (curl); into a directory of the controller, `scp` fetches it. It
neither compresses, encrypts, verifies nor saves anything but the data of etcd.

The cluster is Kubefile.examples/etcd on hosts of the test bed, with everything that is large on tmpfs unless
--disk is given. The values of its keys compress about as well as Kubernetes' objects do: to a third.
"""

import argparse
import base64
import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from statistics import median

import report
import sync_hosts
from conditions import Conditions, first_line
from measure import Cost, Failed, Results, run
from registries import DockerRegistry
from sync_hosts import MB, ROOT, shell, timed

NAME = "bench-backup"
EXAMPLE = ROOT / "Kubefile.examples/etcd"
IMAGE = "bench-etcd:1"
CLIENT = 2379
VALUE = 8000
PUTS = 100
PLACES = ["registry", "directory"]
LARGE = ["/var/lib/bench", "/var/lib/sealos", "/var/lib/imgctl"]
DATA = "/var/lib/bench/etcd"
SNAPSHOT = "/var/lib/bench/snapshot.db"
# What etcd itself does of a restore: make the data anew, start, and answer.
ETCDS = ["restore", "restore-start", "restore-health"]


def arguments(words):
    parser = argparse.ArgumentParser(prog="scripts/bench backup")
    report.options(parser)
    parser.add_argument("--parts", default="backup,restore", help="of: backup,restore")
    parser.add_argument("--size", type=int, default=2000, help="MB of values in etcd (default 2000)")
    parser.add_argument("--dir", default="/dev/shm/imgctl-bench-backup", help="a folder on tmpfs")
    parser.add_argument("--disk", action="store_true", help="hosts write to the disk, not to tmpfs")
    chosen = report.parsed(parser, words)
    chosen.parts = chosen.parts.split(",")
    if unknown := set(chosen.parts) - {"backup", "restore"}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if chosen.quick:
        chosen.size //= 20
    return chosen


def values(rng):
    """Texts like Kubernetes' objects in JSON: names that repeat, words, and data that does not compress."""
    words = [f"{rng.getrandbits(40):x}"[: rng.randrange(3, 10)] for _ in range(3000)]
    while True:
        fields, length = [], 0
        while length < VALUE:
            name = f'"io.example/{rng.choice(words)}":'
            field = name + '"' + (rng.randbytes(24).hex() if rng.random() < 0.2 else " ".join(rng.choices(words[:600], k=9))) + '",'
            fields.append(field)
            length += len(field)
        yield "".join(fields)[:VALUE].encode()


def fill(host, size):
    """Puts `size` bytes of values into etcd, many in a transaction. Farther apart than compressors look back,
    values repeat."""
    made = values(random.Random(7))
    pool = [base64.b64encode(next(made)).decode() for _ in range(2000)]
    line = http.client.HTTPConnection(host, CLIENT, timeout=60)
    for start in range(0, size // VALUE, PUTS):
        puts = [{"requestPut": {"key": base64.b64encode(b"/registry/objects/%09d" % number).decode(), "value": pool[number % len(pool)]}}
                for number in range(start, start + PUTS)]
        line.request("POST", "/v3/kv/txn", json.dumps({"success": puts}))
        answer = line.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise Failed(f"etcd refuses a transaction: {text[:300]}")
    line.close()


class AgentMemory:
    """Watches the peak memory of agents on the hosts of a bed, in MiB."""

    def __enter__(self):
        self.peak, self.ended = 0, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def watch(self):
        while not self.ended.wait(0.2):
            for process in Path("/proc").iterdir():
                try:
                    if process.name.isdigit() and (process / "comm").read_text().startswith("imgctl-agent") \
                            and NAME in (process / "cgroup").read_text():
                        status = (process / "status").read_text()
                        self.peak = max(self.peak, int(status.split("VmHWM:")[1].split()[0]) / 1024)
                except (OSError, IndexError):
                    continue  # it has ended

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def spans(text, event):
    """Seconds of each phase or step that a run with --json tells of, by name, in order; of several hosts the
    longest."""
    took = {}
    for line in text.splitlines():
        told = json.loads(line) if line.startswith('{"time"') else {}
        if told.get("event") == f"{event}-end":
            name = told[event].rpartition("/")[2]
            took[name] = max(took.get(name, 0), told["duration_ms"] / 1000)
    return took


class Bench:
    def __init__(self, chosen, base, bed, results):
        self.chosen, self.base, self.bed, self.results = chosen, base, bed, results
        self.imgctl = sync_hosts.Imgctl(bed, base)
        self.agents, self.steps, self.peer, self.sizes, self.values = [], {}, {}, {}, {}

    def cluster(self):
        """A cluster of one member with the data."""
        # The example is built from a copy: `fetch` writes into it.
        copy = self.base / "example"
        shutil.copytree(EXAMPLE, copy, dirs_exist_ok=True)
        shell(f"{copy}/fetch")
        self.imgctl.build(IMAGE, copy)
        self.key = self.base / "key.txt"
        if not self.key.exists():
            shell(f"age-keygen -o {self.key} 2>/dev/null")
        self.recipient = shell(f"age-keygen -y {self.key}").strip()
        self.imgctl.start("run", IMAGE, "--masters", self.bed.hosts[0], "-u", "root", "-i", self.bed.key, "--yes",
                          "--env", f"etcdData={DATA}", "--env", "etcdQuotaBytes=8589934592")
        print(f"putting {self.chosen.size} MB into etcd", file=sys.stderr, flush=True)
        fill(self.bed.hosts[0], self.chosen.size * MB)

    def host(self, line):
        return self.bed.call("exec", self.bed.names[0], line)

    # -- backups

    def backups(self):
        registry = self.registry()
        try:
            for repeat in range(self.chosen.runs + 1):
                for place in PLACES:
                    for tool in ("etcdctl", "imgctl", "imgctl, encrypted"):
                        self.one(tool, place, registry, repeat > 0)
        finally:
            registry.close()

    def registry(self):
        """A registry that hosts reach, too."""
        gateway = json.loads(subprocess.run(["ip", "-j", "route", "get", self.bed.hosts[0]], capture_output=True, text=True,
                                            check=True).stdout)[0]["prefsrc"]
        return DockerRegistry(self.base / "registry", address=gateway)

    def one(self, tool, place, registry, counts):
        directory = self.base / "place"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        before = self.bed.hosts_cpu()
        if tool == "etcdctl":
            cost = self.snapshot(place, registry, directory, counts)
        else:
            to = f"docker://{registry.address}/backups" if place == "registry" else f"oci:{directory}"
            more = ["--encrypt-to", self.recipient] if "encrypted" in tool else []
            argv = [os.environ["IMGCTL"], "--json", "backup", "--to", to, "--tls-verify=false", *more]
            with AgentMemory() as agents:
                cost, text = run(list(map(str, argv)), env=self.imgctl.environment, keep_output=True)
            if counts:
                self.agents.append(agents.peak)
                for name, took in spans(text, "step").items():
                    self.steps.setdefault((tool, place), {}).setdefault(name, []).append(took)
                self.sizes[tool] = json.loads(text.splitlines()[-1])["bytes"]
        cost.cpu += self.bed.hosts_cpu() - before
        if counts:
            self.results.add("backup", place, tool, cost)
        shutil.rmtree(registry.data / "docker", ignore_errors=True)

    def snapshot(self, place, registry, directory, counts):
        """`etcdctl snapshot save` on the host, and the file's way to the place."""
        save = f"rm -f {SNAPSHOT}; ETCDCTL_API=3 /usr/local/bin/etcdctl --endpoints=http://{self.bed.hosts[0]}:{CLIENT} snapshot save {SNAPSHOT}"
        if place == "registry":
            url = f"http://{registry.address}/v2/plain"
            upload = f"""set -eo pipefail
at=$(curl -sSf -D - -o /dev/null -X POST {url}/blobs/uploads/ | tr -d '\\r' | sed -n 's/^[Ll]ocation: //p')
at=$(tee >(sha256sum | cut -c 1-64 >{SNAPSHOT}.sum) <{SNAPSHOT} |
curl -sSf -D - -o /dev/null -X PATCH -H 'Content-Type: application/octet-stream' -T - "$at" | tr -d '\\r' | sed -n 's/^[Ll]ocation: //p')
until [ -s {SNAPSHOT}.sum ]; do sleep 0.01; done
curl -sSf -o /dev/null -X PUT "$at&digest=sha256:$(cat {SNAPSHOT}.sum)" """
            act = lambda: self.host(upload)
        else:
            act = lambda: shell(f"scp -q {' '.join(self.bed.ssh('-P'))} root@{self.bed.hosts[0]}:{SNAPSHOT} {directory}/")
        start = os.times()
        took = [timed(lambda: self.host(save)), timed(act)]
        end = os.times()
        if counts:
            self.peer.setdefault(place, []).append(took)
            self.sizes["etcdctl"] = int(self.host(f"stat -c %s {SNAPSHOT}"))
        self.host(f"rm -f {SNAPSHOT} {SNAPSHOT}.sum")
        cpu = end.children_user + end.children_system - start.children_user - start.children_system
        return Cost(sum(took), cpu, 0)

    # -- a restore

    def restores(self):
        directory = self.base / "place"
        shutil.rmtree(directory, ignore_errors=True)
        self.imgctl.start("backup", "--to", f"oci:{directory}:kept", "--encrypt-to", self.recipient)
        hosts, phases, whole = self.bed.hosts[:3], {}, []
        for _ in range(self.chosen.runs):
            self.imgctl.start("reset", "--yes")
            shutil.rmtree(self.base / "state", ignore_errors=True)
            self.bed.large()
            argv = [os.environ["IMGCTL"], "--json", "restore", f"oci:{directory}:kept", "--identity", self.key, "--masters",
                    ",".join(hosts), "-u", "root", "-i", self.bed.key, "--yes"]
            cost, text = run(list(map(str, argv)), env=self.imgctl.environment, keep_output=True)
            self.results.add("restore", "three hosts", "imgctl", cost)
            whole.append(cost.wall)
            for name, took in spans(text, "phase").items():
                phases.setdefault(name, []).append(took)
        phases = {name: median(took) for name, took in phases.items()}
        etcds = sum(phases.get(name, 0) for name in ETCDS)
        self.values.update({"restore": median(whole), "restore of etcd": etcds})
        lines = [report.row(["phase", "wall", "whose"]), report.row(["---", "---:", "---"])]
        lines += [report.row([f"`{name}`", report.seconds(took), "etcd's" if name in ETCDS else "ours"]) for name, took in phases.items()]
        rest = median(whole) - sum(phases.values())
        lines += [report.row(["reading and verifying the backup, connecting, checks", report.seconds(rest), "ours"]),
                  report.row(["whole command", report.seconds(median(whole)), ""])]
        return ["### A restore of three hosts", "", *lines, "",
                f"etcd itself takes {report.seconds(etcds)} of {report.seconds(median(whole))}.", ""]

    # -- the report

    def lines(self):
        lines = [report.row(["place", "tool", "wall", "min-max", "CPU", "size", "peak of the controller", "wall / peer"]),
                 report.row(["---"] * 2 + ["---:"] * 6)]
        for (workload, place, tool), costs in self.results.costs.items():
            if workload != "backup":
                continue
            cost, peer = self.results.median((workload, place, tool)), self.results.median((workload, place, "etcdctl"))
            ours = tool != "etcdctl"
            lines.append(report.row([
                place, f"{tool}{'' if ours else ' and upload'}", report.seconds(cost.wall), report.spread([each.wall for each in costs]),
                report.seconds(cost.cpu), f"{self.sizes.get(tool, 0) / MB:.0f} MB", f"{cost.rss:.0f} MiB" if ours else "",
                f"{cost.wall / peer.wall:.2f}x" if ours else ""]))
        lines += ["", report.row(["place", "what the peer does", "wall"]), report.row(["---", "---", "---:"])]
        for place, took in self.peer.items():
            for number, what in enumerate(("`etcdctl snapshot save`", "upload")):
                lines.append(report.row([place, what, report.seconds(median(each[number] for each in took))]))
        lines += ["", report.row(["place", "tool", "step", "wall"]), report.row(["---", "---", "---", "---:"])]
        for (tool, place), steps in self.steps.items():
            for name, took in steps.items():
                lines.append(report.row([place, tool, f"`{name}`", report.seconds(median(took))]))
        self.values["agent MiB"] = max(self.agents, default=0)
        return ["### Backups", "", *lines, "", f"Peak memory of the agent: {self.values['agent MiB']:.0f} MiB.", ""]


class Bed(sync_hosts.Bed):
    def large(self):
        """Empty folders for what is large, on tmpfs unless --disk says otherwise."""
        mount = "true" if self.disk else "mount -t tmpfs bench $d"
        line = f"for d in {' '.join(LARGE)}; do mkdir -p $d; umount -l $d 2>/dev/null; rm -rf $d/*; {mount}; done"
        sync_hosts.parallel([lambda name=name: self.call("exec", name, line) for name in self.names])


def main(words):
    chosen = arguments(words)
    base = Path(chosen.dir)
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    results, watch, bed = Results(), Conditions(), Bed(chosen.disk, NAME)
    bench, lines = Bench(chosen, base, bed, results), []
    try:
        print("backup: making hosts and data", file=sys.stderr, flush=True)
        bed.up(3 if "restore" in chosen.parts else 1)
        bed.large()
        bench.cluster()
        if "backup" in chosen.parts:
            bench.backups()
            lines += bench.lines()
        if "restore" in chosen.parts:
            lines += bench.restores()
    finally:
        used = bed.hosts_cpu()
        if not chosen.keep:
            bed.call("down")
            shutil.rmtree(base, ignore_errors=True)
    versions = [f"etcd of the example, {chosen.size} MB of values", first_line("docker-registry", "--version"), first_line("age", "--version")]
    made = report.Report("backup", chosen.runs, chosen.quick, versions, watch.end(used), lines, report.rows(results), bench.values,
                         where=f"hosts on {'the disk' if chosen.disk else 'tmpfs'}, places on tmpfs")
    report.publish(made, chosen)
