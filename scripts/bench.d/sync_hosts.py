"""scripts/bench sync: an image to hosts of the test bed, against what else copies files over SSH.

Peers copy the same tree, unpacked, to a plain directory: `sftp` file by file as sealos does,
`rsync -a`, `tar | ssh`. imgctl brings the hosts up (`imgctl run`); what counts is the time from its
start to the end of the phase `sync`: connecting, checks, its agent, the layers, unpacking, rendering,
flushing and the switch. Who gets the registry's half is the first host; the others get the rest, and
the peers copy everything, as they cannot know better.

Hosts have what they are sent on tmpfs: on the disk that all of them share, ext4 alone makes the same
job take two to five times as long right after many files were removed. With --disk they use that;
then peers return with the data in memory, and `on disk` adds a sync, which imgctl's time has in it.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median

import report
import workloads
from conditions import Conditions, first_line
from measure import Failed

MB = 1_000_000
ROOT = Path(__file__).resolve().parents[2]
NAME = "bench-sync"
TARGET = "/var/lib/peer"
PLACES = [TARGET, "/var/lib/sealos", "/var/lib/imgctl"]
LABELS = """FROM scratch
LABEL sealos.io.type="rootfs" sealos.io.version="v1beta1" sealos.io.distribution="script" version="v1.0.0" \\
      check="none.sh" init="none.sh" join="none.sh" upgrade="none.sh" clean="none.sh"
COPY . .
"""
PATCH = """FROM scratch
LABEL sealos.io.type="patch" version="v1.0.1"
COPY big opt/big
"""
PARTS = "registry host,other host,four hosts,eight hosts,second run,changed layer"
PEERS = ["sftp", "rsync", "tar|ssh"]


def arguments(words):
    parser = argparse.ArgumentParser(prog="scripts/bench sync")
    report.options(parser)
    parser.add_argument("--parts", default=PARTS, help=f"of: {PARTS}")
    parser.add_argument("--tools", default=",".join([*PEERS, "imgctl"]))
    parser.add_argument("--uplink", type=int, default=1000, help="Mbit/s for eight hosts (default 1000)")
    parser.add_argument("--dir", default="/var/tmp/imgctl-bench-sync")
    parser.add_argument("--disk", action="store_true", help="hosts write to the disk, not to tmpfs")
    chosen = report.parsed(parser, words)
    chosen.parts = [part.strip() for part in chosen.parts.split(",")]
    chosen.tools = chosen.tools.split(",")
    if unknown := set(chosen.parts) - set(PARTS.split(",")):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return chosen


class Bed:
    """Hosts of a test bed of our own."""

    def __init__(self, disk, bed=NAME):
        self.disk, self.bed, self.names = disk, bed, []
        self.environment = {**os.environ, "TESTBED_NAME": bed}

    def call(self, *words):
        done = subprocess.run([ROOT / "scripts/testbed", *map(str, words)], env=self.environment,
                              capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"scripts/testbed {' '.join(map(str, words))}: {done.stderr[-1500:]}")
        return done.stdout

    def up(self, count):
        self.call("up", count)
        listed = json.loads(self.call("list", "--json"))
        self.key = listed["key"]
        self.hosts = [host["ip"] for host in listed["hosts"]][:count]
        self.names = [host["name"] for host in listed["hosts"]][:count]

    def clean(self):
        """Leaves nothing of any tool on any host: the first run on a fresh host is what is measured."""
        if self.disk:
            line = f"rm -rf {' '.join(PLACES)}; mkdir -p {TARGET}; sync -f {TARGET}; sleep 10"
        else:
            line = f"for d in {' '.join(PLACES)}; do mkdir -p $d; umount -l $d 2>/dev/null; mount -t tmpfs bench $d; done"
        parallel([lambda name=name: self.call("exec", name, line) for name in self.names])

    def cpu(self):
        """CPU seconds of all hosts and of what this process has waited for."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime + self.hosts_cpu()

    def hosts_cpu(self):
        return sum(host_cpu(f"imgctl-testbed.{self.bed}.{name}") for name in self.names)

    def ssh(self, port_option="-p"):
        return ["-i", self.key, port_option, "22", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
                "-o", "LogLevel=ERROR"]


def host_cpu(group):
    v1 = Path("/sys/fs/cgroup/cpuacct") / group / "cpuacct.usage"
    if v1.exists():
        return int(v1.read_text()) / 1e9
    lines = (Path("/sys/fs/cgroup") / group / "cpu.stat").read_text().split()
    return int(lines[lines.index("usage_usec") + 1]) / 1e6


def parallel(calls):
    """Runs them at once; the first failure is raised when all have ended."""
    failures = []

    def one(call):
        try:
            call()
        except (Failed, OSError) as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def shell(line, **options):
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, **options)
    if done.returncode:
        raise Failed(f"{line}: exit {done.returncode}: {(done.stderr or done.stdout)[-1500:]}")
    return done.stdout


def timed(act):
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


@dataclass
class Took:
    """Seconds of one measurement."""

    wall: float  # until a peer's command has returned, or until imgctl's hosts are synced
    disk: float  # until the data is on the hosts' disks
    whole: float  # until the command has returned
    cpu: float  # CPU seconds of the controller and the hosts together
    bytes: dict = field(default_factory=dict)  # that came to each host, where the tool says so


class Peer:
    def __init__(self, name, bed, context):
        self.name, self.bed, self.context = name, bed, context

    def reset(self):
        self.bed.clean()

    def copy(self, host):
        ssh = " ".join(self.bed.ssh())
        if self.name == "rsync":
            line = f"rsync -a -e 'ssh {ssh}' {self.context}/ root@{host}:{TARGET}/"
        elif self.name == "tar|ssh":
            line = f"tar -C {self.context} -cf - . | ssh {ssh} root@{host} tar -C {TARGET} -xf -"
        else:
            # One file after the other, each with its own round trips.
            batch = self.context.parent / "sftp.batch"
            line = f"sftp {' '.join(self.bed.ssh('-P'))} -b {batch} root@{host}"
        shell(line)

    def flush(self, host):
        self.bed.call("exec", self.bed.names[self.bed.hosts.index(host)], f"sync -f {TARGET}")

    def run(self, hosts):
        before = self.bed.cpu()
        wall = timed(lambda: parallel([lambda host=host: self.copy(host) for host in hosts]))
        flush = timed(lambda: parallel([lambda host=host: self.flush(host) for host in hosts]))
        return Took(wall, wall + flush, wall, self.bed.cpu() - before)


def sftp_batch(context):
    lines = []
    for directory, names, files in os.walk(context):
        below = os.path.relpath(directory, context)
        lines += [f'-mkdir "{TARGET}/{below}/{name}"' for name in names]
        lines += [f'put "{directory}/{name}" "{TARGET}/{below}/{name}"' for name in files]
    (context.parent / "sftp.batch").write_text("\n".join(lines) + "\n")


class Imgctl:
    name = "imgctl"

    def __init__(self, bed, base):
        self.bed = bed
        self.environment = {
            **os.environ,
            "HOME": str(base / "home"),
            "IMGCTL_ROOT": str(base / "store"),
            "SEALOS_RUNTIME_ROOT": str(base / "state"),
        }
        (base / "home").mkdir(parents=True, exist_ok=True)
        self.base = base

    def start(self, *words):
        done = subprocess.run([os.environ["IMGCTL"], *map(str, words)], env=self.environment,
                              capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"imgctl {' '.join(map(str, words))}: {(done.stderr or done.stdout)[-1500:]}")
        return done

    def build(self, name, context):
        self.start("build", "-t", name, context)

    def reset(self):
        if (self.base / "state").exists():
            self.start("reset", "--yes")
        shutil.rmtree(self.base / "state", ignore_errors=True)
        self.bed.clean()

    def run(self, hosts, *images):
        nodes = ["--nodes", ",".join(hosts[1:])] if hosts[1:] else []
        return self.measure("run", *(images or ["bench:1"]), "--masters", hosts[0], *nodes, "-u", "root",
                            "-i", self.bed.key)

    def add(self, host):
        return self.measure("add", "--nodes", host)

    def measure(self, *words):
        before, began, start = self.bed.cpu(), time.time(), time.perf_counter()
        done = self.start("--json", *words, "--yes")
        whole = time.perf_counter() - start
        synced, moved = whole, {}
        for line in done.stdout.splitlines():
            event = json.loads(line) if line.startswith('{"time"') else {}
            if event.get("phase") != "sync":
                continue
            if event["event"] == "step-start":
                moved[event["host"]] = event.get("bytes", 0)
            if event["event"] == "phase-end":
                synced = datetime.fromisoformat(event["time"]).timestamp() - began
        return Took(synced, synced, whole, self.bed.cpu() - before, moved)


def contexts(base, quick):
    """W1 with labels of a cluster of nothing; 50 MB more as a patch."""
    context = workloads.make("w1", base / "contexts", quick)
    (context / "Kubefile").write_text(LABELS)
    (context / "scripts").mkdir(exist_ok=True)
    (context / "scripts/none.sh").write_text("#!/bin/bash\n")
    sftp_batch(context)
    changed = base / "contexts/changed"
    changed.mkdir(exist_ok=True)
    (changed / "Kubefile").write_text(PATCH)
    with open(changed / "big", "wb") as file:
        file.write(os.urandom((5 if quick else 50) * MB))
    return context, changed


class Table:
    def __init__(self):
        self.times, self.notes = {}, []

    def add(self, part, tool, took):
        self.times.setdefault((part, tool), []).append(took)
        print(f"  {part:<14} {tool:<8} {took.wall:8.2f} s, on disk {took.disk:8.2f} s, whole {took.whole:8.2f} s, "
              f"{took.cpu:6.2f} CPU s",
              file=sys.stderr, flush=True)

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)
            print(f"  {text}", file=sys.stderr, flush=True)

    def median(self, part, tool, what="wall"):
        found = self.times.get((part, tool))
        return median(getattr(took, what) for took in found) if found else None

    def rows(self):
        return [{"workload": "w1", "job": part, "tool": tool, "wall": [took.wall for took in many],
                 "cpu": [took.cpu for took in many], "rss": [0 for _ in many]} for (part, tool), many in self.times.items()]

    def lines(self, chosen):
        columns = [("wall", "wall"), ("CPU", "cpu"), ("whole command", "whole")]
        if chosen.disk:
            columns.insert(1, ("on disk", "disk"))
        titles = [title for title, _ in columns]
        lines = [report.row(["part", "tool", *titles, *(f"{title} / imgctl" for title in titles[:-1])]),
                 "| --- | --- |" + " ---: |" * (2 * len(columns) - 1)]
        for part, tool in self.times:
            cells = [self.median(part, tool, what) for _, what in columns]
            ratios = [""] * (len(columns) - 1)
            if (part, "imgctl") in self.times and tool != "imgctl":
                against = [self.median(part, "imgctl", what) for _, what in columns[:-1]]
                ratios = [f"{theirs / ours:.2f}x" for theirs, ours in zip(cells, against)]
            shown = [report.seconds(cell) for cell in cells]
            lines.append(report.row([part, tool.replace("|", "\\|"), *shown, *ratios]))
        one, eight = self.median("one, shaped", "imgctl"), self.median("eight hosts", "imgctl")
        if one and eight:
            self.note(f"Eight hosts behind the shaped uplink take {eight / one:.2f} times as long as one.")
        return [*lines, "", *(f"- {note}" for note in self.notes)]


def rounds(chosen, bed, tools, table):
    for tool in tools:
        tool.reset()
    for repeat in range(chosen.runs + 1):
        for part, count in (("registry host", 1), ("other host", 1), ("four hosts", 4)):
            for tool in tools:
                # File by file takes minutes a host, and goes the same way to every host.
                if part not in chosen.parts or tool.name == "sftp" and (part != "registry host" or repeat > 1):
                    continue
                if part == "other host" and tool.name == "imgctl":
                    # Added to a cluster of one.
                    tool.run(bed.hosts[:1])
                    took = tool.add(bed.hosts[1])
                else:
                    took = tool.run(bed.hosts[:count])
                if repeat:
                    table.add(part, tool.name, took)
                    if took.bytes:
                        table.note(f"{part}: bytes to each host: {told(took.bytes)}")
                tool.reset()


def told(moved):
    return ", ".join(f"{count / MB:.1f} MB" for count in moved.values())


def ours(chosen, bed, tool, table):
    """What no peer has."""
    for repeat in range(chosen.runs + 1):
        count = repeat > 0
        if "second run" in chosen.parts or "changed layer" in chosen.parts:
            tool.reset()
            tool.run(bed.hosts[:4])
            took = tool.run(bed.hosts[:4])
            if count:
                table.add("second run", tool.name, took)
                table.note(f"second run, four hosts: bytes to each host: {told(took.bytes) or 'nothing to sync'}")
        if "changed layer" in chosen.parts:
            took = tool.run(bed.hosts[:4], "bench:2")
            if count:
                table.add("changed layer", tool.name, took)
                table.note(f"changed layer, four hosts: bytes to each host: {told(took.bytes)}")
        if "eight hosts" in chosen.parts:
            bed.call("rate", "controller", chosen.uplink)
            try:
                for part, hosts in (("one, shaped", bed.hosts[:1]), ("eight hosts", bed.hosts[:8])):
                    tool.reset()
                    took = tool.run(hosts)
                    if count:
                        table.add(part, tool.name, took)
            finally:
                bed.call("rate", "controller", 0)
    tool.reset()


def main(words):
    chosen = arguments(words)
    base = Path(chosen.dir)
    # A killed measurement leaves the record of a cluster whose hosts no longer exist.
    for rest in ("home", "state"):
        shutil.rmtree(base / rest, ignore_errors=True)
    base.mkdir(parents=True, exist_ok=True)
    bed, table = Bed(chosen.disk), Table()
    watch = Conditions()
    try:
        print("making data and hosts", file=sys.stderr, flush=True)
        context, changed = contexts(base, chosen.quick)
        bed.up(8 if "eight hosts" in chosen.parts else 4)
        imgctl = Imgctl(bed, base)
        imgctl.build("bench:1", context)
        imgctl.build("bench:2", changed)
        peers = [Peer(name, bed, context) for name in PEERS if name in chosen.tools]
        tools = peers + ([imgctl] if "imgctl" in chosen.tools else [])
        rounds(chosen, bed, tools, table)
        if "imgctl" in chosen.tools:
            ours(chosen, bed, imgctl, table)
    finally:
        bed.last_cpu = bed.hosts_cpu()
        if not chosen.keep:
            bed.call("down")
            shutil.rmtree(base, ignore_errors=True)
    where = f"hosts on {'the disk' if chosen.disk else 'tmpfs'}"
    made = report.Report("sync", chosen.runs, chosen.quick, [first_line("rsync", "--version")], watch.end(bed.last_cpu),
                         table.lines(chosen), table.rows(), where=where)
    report.publish(made, chosen)
