"""scripts/bench sync: an image to hosts of the test bed, against what else copies files over SSH.

Peers copy the same tree, unpacked, to a plain directory: `sftp` file by file as sealos does,
`rsync -a`, `tar | ssh`. imgctl brings the hosts up (`imgctl run`), which is the copy and more:
connecting, checks, its agent, unpacking, rendering and the switch. Who gets the registry's half is
the first host; the others get the rest, and the peers copy everything, as they cannot know better.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median

import report
import workloads
from measure import Failed

MB = 1_000_000
ROOT = Path(__file__).resolve().parents[2]
TARGET = "/var/lib/peer"
LABELS = """FROM scratch
LABEL sealos.io.type="rootfs" sealos.io.version="v1beta1" sealos.io.distribution="script" version="v1.0.0" \\
      check="none.sh" init="none.sh" join="none.sh" clean="none.sh" init-registry="none.sh" clean-registry="none.sh"
COPY . .
"""
PARTS = "registry host,other host,four hosts,eight hosts,second run,changed layer"
PEERS = ["sftp", "rsync", "tar|ssh"]


def arguments(words):
    parser = argparse.ArgumentParser(prog="scripts/bench sync")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the data, one run")
    parser.add_argument("--runs", type=int, help="measured rounds (default 3; 1 with --quick)")
    parser.add_argument("--parts", default=PARTS, help=f"of: {PARTS}")
    parser.add_argument("--tools", default=",".join([*PEERS, "imgctl"]))
    parser.add_argument("--uplink", type=int, default=1000, help="Mbit/s for eight hosts (default 1000)")
    parser.add_argument("--dir", default="/var/tmp/imgctl-bench-sync")
    parser.add_argument("--keep", action="store_true", help="keep data and hosts for the next time")
    parser.add_argument("--markdown", help="write the table to this file too")
    chosen = parser.parse_args(words)
    chosen.runs = chosen.runs or (1 if chosen.quick else 3)
    chosen.parts = [part.strip() for part in chosen.parts.split(",")]
    chosen.tools = chosen.tools.split(",")
    if unknown := set(chosen.parts) - set(PARTS.split(",")):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return chosen


class Bed:
    """Hosts of a test bed of our own."""

    def __init__(self):
        self.environment = {**os.environ, "TESTBED_NAME": "bench-sync"}

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

    def everywhere(self, line):
        """A line on all hosts at once, outside what is measured."""
        parallel([lambda name=name: self.call("exec", name, line) for name in self.names])

    def ssh(self, port_option="-p"):
        return ["-i", self.key, port_option, "22", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
                "-o", "LogLevel=ERROR"]


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


class Peer:
    def __init__(self, name, bed, context):
        self.name, self.bed, self.context = name, bed, context

    def reset(self):
        self.bed.everywhere(f"rm -rf {TARGET} && mkdir -p {TARGET} && sync -f {TARGET}")

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
        # The peers leave the data in memory; imgctl does not.
        self.bed.call("exec", self.bed.names[self.bed.hosts.index(host)], f"sync -f {TARGET}")

    def run(self, hosts):
        return timed(lambda: parallel([lambda host=host: self.copy(host) for host in hosts]))


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

    def call(self, *words):
        done = subprocess.run([os.environ["IMGCTL"], *map(str, words)], env=self.environment,
                              capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"imgctl {' '.join(map(str, words))}: {(done.stderr or done.stdout)[-1500:]}")
        return done.stdout

    def build(self, name, context):
        self.call("build", "-t", name, context)

    def reset(self):
        shutil.rmtree(self.base / "state", ignore_errors=True)
        # What it put there, its agent too: the first run on a fresh host is what is measured.
        self.bed.everywhere("rm -rf /var/lib/sealos /var/lib/imgctl /var/lib/registry; sync -f /var/lib")

    def run(self, hosts, image="bench:1"):
        nodes = ["--nodes", ",".join(hosts[1:])] if hosts[1:] else []
        return timed(lambda: self.call(
            "run", image, "--masters", hosts[0], *nodes, "-u", "root", "-i", self.bed.key, "--yes"))

    def plan(self, hosts, image="bench:1"):
        """Bytes that another run would move."""
        nodes = ["--nodes", ",".join(hosts[1:])] if hosts[1:] else []
        text = self.call("plan", "--json", "run", image, "--masters", hosts[0], *nodes, "-u", "root",
                         "-i", self.bed.key)
        return [int(line["bytes"]) for line in json.loads(text).get("sync", {}).get("hosts", [])]


def contexts(base, quick):
    """W1 with labels of a cluster of nothing; the second with 50 MB more in a layer of its own."""
    context = workloads.make("w1", base / "contexts", quick)
    (context / "Kubefile").write_text(LABELS)
    (context / "scripts").mkdir(exist_ok=True)
    (context / "scripts/none.sh").write_text("#!/bin/bash\n")
    sftp_batch(context)
    changed = base / "contexts/changed"
    changed.mkdir(exist_ok=True)
    (changed / "Kubefile").write_text("FROM localhost/bench:1\nCOPY big opt/big\n")
    with open(changed / "big", "wb") as file:
        file.write(os.urandom((5 if quick else 50) * MB))
    return context, changed


class Table:
    def __init__(self):
        self.times, self.notes = {}, []

    def add(self, part, tool, seconds):
        self.times.setdefault((part, tool), []).append(seconds)
        print(f"  {part:<14} {tool:<8} {seconds:8.2f} s", file=sys.stderr, flush=True)

    def note(self, text):
        self.notes.append(text)
        print(f"  {text}", file=sys.stderr, flush=True)

    def median(self, part, tool):
        return median(self.times[part, tool]) if (part, tool) in self.times else None

    def render(self):
        lines = [report.machine(), "", report.row(["part", "tool", "wall", "wall / imgctl"]),
                 "| --- | --- | ---: | ---: |"]
        for part, tool in self.times:
            seconds, ours = self.median(part, tool), self.median(part, "imgctl")
            ratio = f"{seconds / ours:.2f}x" if ours and tool != "imgctl" else ""
            lines.append(report.row([part, tool, report.seconds(seconds), ratio]))
        one, eight = self.median("one, shaped", "imgctl"), self.median("eight hosts", "imgctl")
        if one and eight:
            lines += ["", f"Eight hosts behind the shaped uplink take {eight / one:.2f} times as long as one."]
        return "\n".join([*lines, "", *self.notes]) + "\n"


def rounds(chosen, bed, tools, table):
    for repeat in range(chosen.runs + 1):
        for tool in tools:
            for part, hosts in (("registry host", bed.hosts[:1]), ("four hosts", bed.hosts[:4])):
                if part not in chosen.parts:
                    continue
                # File by file takes minutes a host: one host says enough.
                if tool.name == "sftp" and len(hosts) > 1:
                    continue
                tool.reset()
                seconds = tool.run(hosts)
                if repeat:
                    table.add(part, tool.name, seconds)
            if "other host" in chosen.parts and tool.name != "sftp":
                other_host(bed, tool, table if repeat else None)


def other_host(bed, tool, table):
    """A host that is no registry host: added to a cluster of one."""
    tool.reset()
    if tool.name == "imgctl":
        tool.run(bed.hosts[:1])
        seconds = timed(lambda: tool.call("add", "--nodes", bed.hosts[1], "--yes"))
    else:
        seconds = tool.run(bed.hosts[1:2])
    if table:
        table.add("other host", tool.name, seconds)


def ours(chosen, bed, tool, table):
    """What no peer has."""
    for repeat in range(chosen.runs + 1):
        count = repeat > 0
        if "second run" in chosen.parts or "changed layer" in chosen.parts:
            tool.reset()
            tool.run(bed.hosts[:4])
            seconds = tool.run(bed.hosts[:4])
            if count:
                table.add("second run", tool.name, seconds)
                table.note(f"second run: bytes to move per host: {tool.plan(bed.hosts[:4])}")
        if "changed layer" in chosen.parts:
            planned = tool.plan(bed.hosts[:4], "bench:2")
            seconds = tool.run(bed.hosts[:4], "bench:2")
            if count:
                table.add("changed layer", tool.name, seconds)
                table.note(f"changed layer: bytes to move per host: {planned}")
        if "eight hosts" in chosen.parts:
            bed.call("rate", "controller", chosen.uplink)
            try:
                for part, hosts in (("one, shaped", bed.hosts[:1]), ("eight hosts", bed.hosts[:8])):
                    tool.reset()
                    seconds = tool.run(hosts)
                    if count:
                        table.add(part, tool.name, seconds)
            finally:
                bed.call("rate", "controller", 0)


def main(words):
    chosen = arguments(words)
    base = Path(chosen.dir)
    base.mkdir(parents=True, exist_ok=True)
    bed, table = Bed(), Table()
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
        if not chosen.keep:
            bed.call("down")
            shutil.rmtree(base, ignore_errors=True)
    text = table.render()
    print(text)
    if chosen.markdown:
        Path(chosen.markdown).write_text(text)
