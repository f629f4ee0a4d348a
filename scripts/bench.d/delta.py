"""`scripts/bench delta`: a site has a cluster image and gets its next version, of which little changed:
pulled over a slow line, synced to hosts, and on a stick. Bytes on the line are counted by what stands
between the two sides, not by the tools.

A round of these takes minutes on the line alone, so there is no round that does not count.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import report
import sync_hosts
import workloads
from conditions import Conditions, first_line
from link import Link
from measure import Failed, Results, run, total
from registries import DockerRegistry
from ship_tools import ShipImgctl, ShipPodman, Skopeo, version_of

MB = 1_000_000
PARTS = ["pull", "bundle", "hosts", "etcd"]
REPOSITORY = "team/cluster"
HOSTS = 4
ETCD = Path.home() / ".cache/imgctl-examples/etcd"
ETCD_VERSIONS = ["3.5.0", "3.5.1"]


def arguments(words):
    parser = argparse.ArgumentParser(prog="scripts/bench delta")
    report.options(parser, runs=1)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--mbit", type=int, default=100, help="the line to the registry, Mbit/s (default 100)")
    parser.add_argument("--etcd", default=ETCD, help=f"directory with {' and '.join(ETCD_VERSIONS)} (as scripts/quickstart leaves it)")
    parser.add_argument("--dir", default="/dev/shm/imgctl-bench", help="a folder on tmpfs")
    chosen = report.parsed(parser, words)
    chosen.parts = chosen.parts.split(",")
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return chosen


class PartialPodman(ShipPodman):
    """podman that fetches only the files that its store lacks (containers/storage, zstd:chunked)."""

    name = "podman-partial"
    configuration = """[storage]
driver = "overlay"
graphroot = "{root}"
runroot = "{run}"
[storage.options]
pull_options = {{enable_partial_images = "true", use_hard_links = "false", ostree_repos = ""}}
"""

    def argv(self, *words):
        # Its flags --root and --storage-driver would hide the options of the file.
        file = self.directory.parent / "storage.conf"
        file.write_text(self.configuration.format(root=self.directory / "root", run=self.directory / "run"))
        return ["env", f"CONTAINERS_STORAGE_CONF={file}", "podman", *words]


class Table:
    """Rows of what moved, and how long it took."""

    def __init__(self, *titles):
        self.lines = [report.row(titles), report.row(["---"] * 2 + ["---:"] * (len(titles) - 2))]

    def add(self, *cells):
        self.lines.append(report.row([str(cell) for cell in cells]))
        print("  " + "  ".join(map(str, cells)), file=sys.stderr, flush=True)


def megabytes(count):
    return f"{count / MB:.1f} MB"


class Bench:
    def __init__(self, chosen, base, results):
        self.chosen, self.base, self.results = chosen, base, results
        self.scratch, self.values = base / "scratch", {}
        self.imgctl = ShipImgctl(base / "stores")

    def build(self, tool, name, context):
        run(tool.argv("--quiet", "build", "--save-image=false", "-t", name, "-f", context / "Kubefile", context))

    # -- over a slow line

    def pulls(self, context):
        registry = DockerRegistry(self.scratch / "registry")
        for version in ("old", "new"):
            self.build(self.imgctl, f"localhost/{version}", context / version)
            self.imgctl.push_as(f"localhost/{version}", f"{registry.address}/{REPOSITORY}:{version}")
        self.imgctl.reset()
        table = Table("pull of the new version", "tool", "on the line", "wall", "CPU", "bytes / imgctl", "wall / imgctl")
        moved, walls, cpus = {}, {}, {}
        tools = [ShipImgctl(self.base / "stores"), ShipPodman(self.base / "stores"), PartialPodman(self.base / "stores"),
                 Skopeo(self.base / "stores")]
        cases = [(tool, has) for tool in tools for has in ("old", "nothing")]
        try:
            for _ in range(self.chosen.runs):
                for tool, has in cases:
                    if has == "nothing" and tool.name not in ("imgctl", "podman"):
                        continue
                    try:
                        count, cost = self.pull(tool, has, registry)
                    except Failed as error:
                        self.results.fail("delta", f"pull, has {has}", tool.name, error)
                        continue
                    finally:
                        tool.reset()
                    key = (has, tool.name)
                    moved.setdefault(key, []).append(count)
                    walls.setdefault(key, []).append(cost.wall)
                    cpus.setdefault(key, []).append(cost.cpu)
                    self.results.add("delta", f"pull, has {has}", tool.name, cost)
        finally:
            registry.close()
        ours = ("old", "imgctl")
        for key in moved:
            has, tool = key
            count, wall = median(moved[key]), median(walls[key])
            self.values[f"pull {has} {tool} bytes"], self.values[f"pull {has} {tool} wall"] = count, wall
            ratios = ["", ""]
            if ours in moved and key != ours:
                ratios = [f"{count / median(moved[ours]):.1f}x", f"{wall / median(walls[ours]):.1f}x"]
            table.add(f"has {'the old one' if has == 'old' else 'nothing'}", tool, megabytes(count), report.seconds(wall),
                      report.seconds(median(cpus[key])), *ratios)
        return [f"### Pull over {self.chosen.mbit} Mbit/s", "", *table.lines, ""]

    def pull(self, tool, has, registry):
        """Bytes on the line and cost of the new version's pull."""
        link = Link(registry.address, self.chosen.mbit)
        try:
            if has == "old":
                # Before it is measured, past the slow line but under the same name.
                link.buckets["down"].rate *= 1000
                tool.pull(f"{link.address}/{REPOSITORY}:old")
                link.buckets["down"].rate /= 1000
            before = link.moved()
            cost = tool.pull(f"{link.address}/{REPOSITORY}:new")
            return link.moved() - before, cost
        finally:
            link.close()

    # -- on a stick

    def bundles(self, context):
        for version in ("old", "new"):
            self.build(self.imgctl, f"localhost/{version}", context / version)
        table = Table("the update as a file", "tool", "size", "wall", "CPU", "peak memory")
        sizes = {}

        def add(what, tool, file, cost):
            sizes[what] = file.stat().st_size
            self.results.add("delta", what, tool, cost)
            table.add(what, tool, megabytes(sizes[what]), report.seconds(cost.wall), report.seconds(cost.cpu), f"{cost.rss:.0f} MiB")

        whole, delta = self.scratch / "whole.tar", self.scratch / "delta.tar"
        make = lambda file, *more: run(self.imgctl.argv("--quiet", "bundle", "create", *more, "localhost/old", "localhost/new",
                                                        "-o", file))
        add("bundle create", "imgctl", whole, make(whole))
        add("bundle create --delta", "imgctl", delta, make(delta, "--delta"))
        patches, cost = self.patches(context)
        sizes["patches"] = patches
        table.add("changed files, each a patch", "zstd -19 --patch-from", megabytes(patches), report.seconds(cost.wall),
                  report.seconds(cost.cpu), f"{cost.rss:.0f} MiB")
        if shutil.which("casync"):
            moved, cost = self.casync(context)
            table.add("chunks that the old index lacks", "casync", megabytes(moved), report.seconds(cost.wall),
                      report.seconds(cost.cpu), f"{cost.rss:.0f} MiB")
        old = dict(self.layers("localhost/old"))
        rebuilt = sum(size for digest, size in self.layers("localhost/new") if digest not in old)
        self.imgctl.reset()
        self.build(self.imgctl, "localhost/old", context / "old")
        applied = run(self.imgctl.argv("--quiet", "bundle", "apply", delta))
        self.results.add("delta", "bundle apply", "imgctl", applied)
        self.imgctl.reset()
        self.values.update({"bundle": sizes["bundle create"], "delta": sizes["bundle create --delta"], "patches": patches,
                            "apply MB/s": rebuilt / MB / applied.wall, "apply MB/s of a core": rebuilt / MB / applied.cpu,
                            "apply MiB": applied.rss})
        return ["### On a stick", "", *table.lines, "",
                f"Applying the delta: {report.seconds(applied.wall)}, {report.seconds(applied.cpu)} of CPU for {megabytes(rebuilt)} "
                f"of layers ({rebuilt / MB / applied.cpu:.0f} MB/s of a core), {applied.rss:.0f} MiB.", ""]

    def layers(self, name):
        """Digests and sizes of an image's layers."""
        _, text = run(self.imgctl.argv("inspect", "--json", name), keep_output=True)
        manifest = json.loads(json.loads(text)["Manifest"])
        return [(layer["digest"], layer["size"]) for layer in manifest["layers"]]

    def blobs(self, name):
        return [size for _, size in self.layers(name)]

    def patches(self, context):
        """What `zstd -19` makes of each changed file: a patch against its former version if it has one."""
        costs, size, out = [], 0, self.scratch / "patch.zst"
        for path in sorted((context / "new").rglob("*")):
            former = context / "old" / path.relative_to(context / "new")
            if not path.is_file() or path.is_symlink() or former.exists() and former.read_bytes() == path.read_bytes():
                continue
            words = ["zstd", "-q", "-f", "-19", "--long=31", "-o", out, path]
            costs.append(run([*words, f"--patch-from={former}"] if former.exists() else words))
            size += out.stat().st_size
        return size, total(costs)

    def casync(self, context):
        """Bytes of the chunks of the new tree that the old one's store lacks."""
        store, sizes, cost = self.scratch / "store.castr", [], None
        for version in ("old", "new"):
            cost = run(["casync", "make", f"--store={store}", self.scratch / f"{version}.caidx", context / version])
            sizes.append(sum(path.stat().st_size for path in store.rglob("*.cacnk")))
        shutil.rmtree(store)
        return sizes[1] - sizes[0], cost

    # -- to hosts

    def hosts(self, context):
        bed = sync_hosts.Bed(disk=False)
        table = Table("to four hosts that have the old version", "tool", "sent by the controller", "wall", "bytes / imgctl")
        moved, walls = {}, {}
        base = self.scratch / "controller"
        try:
            bed.up(HOSTS)
            device = json.loads(subprocess.run(["ip", "-j", "route", "get", bed.hosts[0]], capture_output=True, text=True,
                                               check=True).stdout)[0]["dev"]
            sent = lambda: int(Path(f"/sys/class/net/{device}/statistics/tx_bytes").read_text())
            tool = sync_hosts.Imgctl(bed, base)
            for number, version in enumerate(("old", "new")):
                labels = sync_hosts.LABELS.replace("v1.0.0", f"v1.0.{number}")
                (context / version / "Kubefile").write_text(labels)
                (context / version / "scripts").mkdir(exist_ok=True)
                (context / version / "scripts/none.sh").write_text("#!/bin/bash\n")
                tool.build(f"bench:{version}", context / version)
            for _ in range(self.chosen.runs):
                for name in ("imgctl", "imgctl --delta always"):
                    more = name.split()[1:]
                    tool.reset()
                    tool.run(bed.hosts, "bench:old")
                    before = sent()
                    took = tool.measure("run", "bench:new", *(["=".join(more)] if more else []))
                    moved.setdefault(name, []).append(sent() - before)
                    walls.setdefault(name, []).append(took.wall)
                tool.reset()
                rsync = lambda version: sync_hosts.parallel([lambda host=host: sync_hosts.shell(
                    f"rsync -az --delete -e 'ssh {' '.join(bed.ssh())}' {context}/{version}/ root@{host}:{sync_hosts.TARGET}/")
                    for host in bed.hosts])
                rsync("old")
                before, start = sent(), time.perf_counter()
                rsync("new")
                walls.setdefault("rsync -az", []).append(time.perf_counter() - start)
                moved.setdefault("rsync -az", []).append(sent() - before)
        finally:
            self.host_cpu = bed.hosts_cpu()
            bed.call("down")
        ours = median(moved["imgctl"])
        for tool in moved:
            count = median(moved[tool])
            self.values[f"hosts {tool} bytes"] = count
            table.add("", tool, megabytes(count), report.seconds(median(walls[tool])), "" if tool == "imgctl" else f"{count / ours:.2f}x")
        return ["### To four hosts", "", *table.lines, ""]

    # -- the example

    def etcd(self, _):
        """The three programs of etcd, one patch release to the next."""
        folders = [Path(self.chosen.etcd) / version for version in ETCD_VERSIONS]
        if not all(folder.is_dir() for folder in folders):
            return [f"The example of etcd was not measured: {folders[0].parent} is missing.", ""]
        for version, folder in zip(("old", "new"), folders):
            context = self.scratch / f"etcd-{version}"
            shutil.copytree(folder, context / "bin")
            (context / "Kubefile").write_text("FROM scratch\nCOPY bin /usr/bin\n")
            self.build(self.imgctl, f"localhost/{version}", context)
        delta = self.scratch / "etcd.tar"
        cost = run(self.imgctl.argv("--quiet", "bundle", "create", "--delta", "localhost/old", "localhost/new", "-o", delta))
        whole = sum(self.blobs("localhost/new"))
        self.imgctl.reset()
        size = delta.stat().st_size
        self.values.update({"etcd": size, "etcd whole": whole})
        return [f"etcd {ETCD_VERSIONS[0]} to {ETCD_VERSIONS[1]}, three programs: {megabytes(size)} as a bundle with deltas "
                f"({report.seconds(cost.wall)} to make it), {megabytes(whole)} as a layer.", ""]


def main(words):
    chosen = arguments(words)
    base = Path(chosen.dir)
    shutil.rmtree(base / "scratch", ignore_errors=True)
    (base / "scratch").mkdir(parents=True)
    results, watch = Results(), Conditions()
    bench = Bench(chosen, base, results)
    bench.host_cpu = 0.0
    acts = {"pull": bench.pulls, "bundle": bench.bundles, "hosts": bench.hosts, "etcd": bench.etcd}
    lines = []
    try:
        print("delta: making the contexts", file=sys.stderr, flush=True)
        context = workloads.make("delta", base / "contexts", chosen.quick)
        for part in chosen.parts:
            lines += acts[part](context)
    finally:
        bench.imgctl.reset()
        shutil.rmtree(base / "scratch" if chosen.keep else base, ignore_errors=True)
    versions = [*(version_of(tool) for tool in ("podman", "skopeo")), first_line("rsync", "--version"), first_line("zstd", "--version")]
    if shutil.which("casync"):
        versions.append(first_line("casync", "--version"))
    made = report.Report("delta", chosen.runs, chosen.quick, versions, watch.end(bench.host_cpu),
                         [*lines, *report.missing(results)], report.rows(results), bench.values, discarded=False)
    report.publish(made, chosen)
