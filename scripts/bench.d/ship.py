"""`scripts/bench ship`: what it takes to push, pull, save and load an image, to serve it and to embed
images. As in build.py each round runs every tool once, in turn, and the first round is thrown away.

Every tool pulls the same bytes from the same docker-registry; every push goes to an empty one.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

import embedding
import limits
import report
import serving
import workloads
from conditions import Conditions
from measure import Failed, Results, run, total
from registries import DockerRegistry, Serve
from ship_tools import HELD, ShipImgctl, ship_tools, version_of
from tools import IMAGE

PARTS = ["pull", "push", "archive", "serve", "embed"]
REPOSITORY = "team/cluster"
# The tags: how the layers are compressed. The first is what the jobs use that take only one.
COMPRESSIONS = ["gzip", "zstd"]


def arguments(words):
    parser = argparse.ArgumentParser(prog="scripts/bench ship")
    report.options(parser)
    parser.add_argument("--workload", default="w1,w3")
    parser.add_argument("--tools", default="buildah,podman,skopeo,crane,imgctl")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--dir", default="/dev/shm/imgctl-bench", help="a folder on tmpfs")
    chosen = report.parsed(parser, words)
    chosen.parts = chosen.parts.split(",")
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return chosen


class Bench:
    def __init__(self, chosen, base, results):
        self.chosen, self.base, self.results = chosen, base, results
        self.scratch = base / "scratch"
        self.tools = ship_tools(chosen.tools.split(","), base / "stores")
        self.values = {}
        self.imgctl = next((tool for tool in self.tools if tool.name == "imgctl"), None) or ShipImgctl(base / "stores")

    def round(self, workload, job, act, count):
        """Every tool that can do `job`: `act` does it and gives its cost."""
        for tool in self.tools:
            try:
                cost = act(tool)
                if count and cost:
                    self.results.add(workload, job, tool.name, cost)
            except Failed as error:
                self.results.fail(workload, job, tool.name, error)
            finally:
                tool.reset()

    def publish(self, context):
        """The image in a registry, once for each compression."""
        registry = DockerRegistry(self.scratch / "upstream")
        self.imgctl.reset()
        for compression in COMPRESSIONS:
            self.imgctl.build(context, "--save-image=false", "--compression", compression)
            self.imgctl.push_as(IMAGE, f"{registry.address}/{REPOSITORY}:{compression}")
        self.imgctl.reset()
        return registry

    def pulls(self, workload, registry, count):
        for compression in COMPRESSIONS:
            place = f"{registry.address}/{REPOSITORY}:{compression}"
            # What keeps images packed is compared with our pull that does.
            packed = lambda tool: tool.pull(place) if tool.name not in ("buildah", "podman") else None
            mountable = lambda tool: tool.mountable(place) if hasattr(tool, "mountable") else None
            self.round(workload, f"pull {compression}", packed, count)
            self.round(workload, f"pull {compression}, mountable", mountable, count)

    def pushes(self, workload, registry, count):
        source = f"{registry.address}/{REPOSITORY}:{COMPRESSIONS[0]}"
        again = {}

        def push(tool):
            if tool.name == "podman":  # It packs and sends with buildah's code: that would say nothing new.
                return None
            tool.hold(source)
            target = DockerRegistry(self.scratch / "target")
            try:
                place = f"{target.address}/{REPOSITORY}:pushed"
                cost = tool.push(place)
                again[tool.name] = tool.push(place)
                return cost
            finally:
                target.close()

        self.round(workload, "push", push, count)
        self.round(workload, "push, nothing changed", lambda tool: again.get(tool.name), count)

    def archives(self, workload, registry, count):
        place = f"{registry.address}/{REPOSITORY}:{COMPRESSIONS[0]}"
        archive, same = self.scratch / "saved.tar", self.scratch / "same.tar"

        def save(tool):
            if not hasattr(tool, "save") or tool.name == "podman":
                return None
            tool.hold(place)
            archive.unlink(missing_ok=True)
            return tool.save(archive)

        def load(tool):
            return tool.load(same) if hasattr(tool, "load") else None

        def load_mountable(tool):
            if tool.name != "imgctl":
                return None
            cost = tool.load(same)
            return total([cost, run(tool.argv("mount", HELD)), run(tool.argv("umount", HELD))])

        self.round(workload, "save", save, count)
        archive.unlink(missing_ok=True)
        self.imgctl.hold(place)
        self.imgctl.save(same)
        self.imgctl.reset()
        self.round(workload, "load", load, count)
        self.round(workload, "load, mountable", load_mountable, count)
        same.unlink()

    def workload(self, name):
        print(f"{name}: making the context", file=sys.stderr, flush=True)
        context = workloads.make(name, self.base / "contexts", self.chosen.quick)
        registry = self.publish(context)
        parts = {"pull": self.pulls, "push": self.pushes, "archive": self.archives}
        try:
            for repeat in range(self.chosen.runs + 1):
                for part, act in parts.items():
                    if part in self.chosen.parts:
                        act(name, registry, repeat)
            if "pull" in self.chosen.parts:
                limits.measure(self.results, name, context, self.scratch, self.chosen.runs, only=["tar x", "sha256"])
        finally:
            registry.close(remove=False)
        served = []
        if "serve" in self.chosen.parts and shutil.which("wrk"):
            say = lambda line: print(line, file=sys.stderr, flush=True)
            seconds = 1 if self.chosen.quick else 4
            loads = serving.measure([DockerRegistry, Serve], registry.data, REPOSITORY, COMPRESSIONS[0],
                                    self.chosen.runs, seconds, say)
            served = serving.table(loads)
        shutil.rmtree(registry.data)
        return served


def main(words):
    chosen = arguments(words)
    base = Path(chosen.dir)
    shutil.rmtree(base / "scratch", ignore_errors=True)
    (base / "scratch").mkdir(parents=True)
    results, watch = Results(), Conditions()
    bench = Bench(chosen, base, results)
    sections = []
    try:
        for name in filter(None, chosen.workload.split(",")):
            served = bench.workload(name)
            costs = report.table(results, name) if any(key[0] == name for key in results.costs) else []
            sections += [f"### {name.upper()}", "", *costs, ""]
            sections += ["", *served, ""] if served else []
        if "embed" in chosen.parts:
            three = [ShipImgctl(base / f"stores/{role}") for role in ("maker", "builder", "puller")]
            sections += ["### Embedding", "", *embedding.table(embedding.measure(*three, bench.scratch)), ""]
    finally:
        for tool in bench.tools:
            tool.reset()
        shutil.rmtree(base / "scratch" if chosen.keep else base, ignore_errors=True)
    versions = [*(version_of(tool.name) for tool in bench.tools), "docker-registry " + version_of("docker-registry").split()[-1]]
    lines = [*sections, *report.missing(results)]
    made = report.Report("ship", chosen.runs, chosen.quick, versions, watch.end(), lines, report.rows(results), bench.values)
    report.publish(made, chosen)
