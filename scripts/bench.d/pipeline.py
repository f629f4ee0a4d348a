"""`scripts/bench ci`: what a CI job does on a fresh machine: build, push, and use a build cache in the
registry. Each tool has a docker-registry of its own; its store is emptied before every job, which is what
a fresh runner is. As in build.py each round runs every tool in turn, and the first round is thrown away.

The cache of imgctl is signed and read with the key; the same jobs with a cache that nobody has signed are
in rows of their own. buildah trusts every cache.
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from statistics import median

import report
import workloads
from conditions import Conditions
from measure import Failed, Results, run, total
from registries import DockerRegistry
from ship_tools import version_of
from tools import IMAGE, Buildah, Imgctl

# Pairs of builds, without and with an export of the unchanged cache.
PAIRS = 15
PLATFORMS = "linux/amd64,linux/arm64"


def arguments(words):
    parser = argparse.ArgumentParser(prog="scripts/bench ci")
    report.options(parser)
    parser.add_argument("--workload", default="w1,w3")
    parser.add_argument("--tools", default="buildah,imgctl")
    parser.add_argument("--dir", default="/dev/shm/imgctl-bench", help="a folder on tmpfs")
    chosen = report.parsed(parser, words)
    return chosen


class CiBuildah(Buildah):
    def job(self, context, registry):
        cache = ["--cache-from", f"{registry.address}/team/cache", "--cache-to", f"{registry.address}/team/cache"]
        built = run(self.argv("build", "--layers", "-q", "--tls-verify=false", *cache, "-t", IMAGE,
                              "-f", context / "Kubefile", context))
        pushed = run(self.argv("push", "-q", "--tls-verify=false", IMAGE, f"docker://{registry.address}/team/app:v1"))
        return total([built, pushed])


class CiImgctl(Imgctl):
    key = None

    def job(self, context, registry, *more, signed=True, exports=True):
        cache = f"type=registry,ref={registry.address}/team/{'signed' if signed else 'cache'}"
        if signed:
            cache += f",key={self.key}"
        flags = ["--cache-from", cache, *(["--cache-to", cache] if exports else []), *more]
        return run(self.argv("--quiet", "build", "--push", "--tls-verify=false", "--save-image=false", *flags,
                             "-t", f"{registry.address}/team/app:v1", "-f", context / "Kubefile", context))

    def make_key(self, directory):
        """As a secret of a CI system, the key has no password."""
        self.key = directory / "cache.key"
        run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.key])


def stored(registry):
    """Bytes of the blobs that a registry has."""
    return sum(path.stat().st_size for path in Path(registry.data).glob("docker/registry/v2/blobs/*/*/*/data"))


class Bench:
    def __init__(self, chosen, base, results):
        self.chosen, self.base, self.results = chosen, base, results
        self.scratch = base / "scratch"
        classes = {"buildah": CiBuildah, "imgctl": CiImgctl}
        self.tools = [classes[name](base / "stores") for name in chosen.tools.split(",")]
        self.sent, self.values = {}, {}
        for tool in self.tools:
            if tool.name == "imgctl":
                tool.make_key(self.scratch)

    def once(self, workload, job, tool, count, act):
        tool.reset()
        try:
            cost = act()
            if count:
                self.results.add(workload, job, tool.name, cost)
            return cost
        except Failed as error:
            self.results.fail(workload, job, tool.name, error)
            return None

    def round(self, workload, context, count):
        registries = {tool.name: DockerRegistry(self.scratch / f"registry-{tool.name}") for tool in self.tools}
        try:
            for tool in self.tools:
                self.once(workload, "first build", tool, count, lambda: tool.job(context, registries[tool.name]))
                if tool.name == "imgctl":
                    tool.reset()
                    tool.job(context, registries[tool.name], signed=False)
            for tool in self.tools:
                registry = registries[tool.name]
                cost = self.once(workload, "unchanged", tool, count, lambda: tool.job(context, registry))
                if tool.name == "imgctl":
                    act = lambda: tool.job(context, registry, signed=False)
                    self.once(workload, "unchanged, unsigned", tool, count, act)
                elif count and cost:
                    self.results.add(workload, "unchanged, unsigned", tool.name, cost)
            workloads.change_one_file(context)
            for tool in self.tools:
                registry = registries[tool.name]
                before = stored(registry)
                self.once(workload, "one file changed", tool, count, lambda: tool.job(context, registry))
                self.sent.setdefault((workload, tool.name), []).append(stored(registry) - before)
        finally:
            for registry in registries.values():
                registry.close()

    def exports(self, workload, context):
        """What the export of an unchanged cache adds to a build of which nothing is left to do."""
        tool = next((tool for tool in self.tools if tool.name == "imgctl"), None)
        if not tool:
            return []
        registry = DockerRegistry(self.scratch / "registry-pairs")
        try:
            tool.reset()
            tool.job(context, registry)
            # The digests of files that have just changed are not kept.
            time.sleep(3)
            tool.job(context, registry)
            pairs = [[tool.job(context, registry, exports=exports).wall for exports in (False, True)] for _ in range(PAIRS)]
        finally:
            registry.close()
            tool.reset()
        without, both = (median(pair[which] for pair in pairs) for which in (0, 1))
        added = median(pair[1] - pair[0] for pair in pairs)
        self.values[f"{workload} export"] = added
        return [f"Export of an unchanged cache: {added * 1000:.0f} ms (a build of which nothing is left to do: "
                f"{report.seconds(without)} without, {report.seconds(both)} with it; medians of {PAIRS} pairs)."]

    def platforms(self, workload, context):
        """Two platforms of a Kubefile without RUN against one."""
        tool = next((tool for tool in self.tools if tool.name == "imgctl"), None)
        if not tool:
            return []
        walls = {}
        for _ in range(self.chosen.runs + 1):
            for name, words in (("one", []), ("two", ["--platform", PLATFORMS])):
                tool.reset()
                walls.setdefault(name, []).append(tool.build(context, "--save-image=false", *words).wall)
        tool.reset()
        one, two = (median(walls[name][1:]) for name in ("one", "two"))
        self.values[f"{workload} two platforms"] = two / one
        return [f"Two platforms: {report.seconds(two)} against {report.seconds(one)} for one, {two / one:.2f}x."]

    def workload(self, name):
        print(f"{name}: making the context", file=sys.stderr, flush=True)
        context = workloads.make(name, self.base / "contexts", self.chosen.quick)
        for repeat in range(self.chosen.runs + 1):
            self.round(name, context, repeat)
        lines = [f"### {name.upper()}", "", *report.table(self.results, name), ""]
        for tool in self.tools:
            sent = median(self.sent[name, tool.name]) / 1e6
            self.values[f"{name} grown {tool.name}"] = sent
            lines.append(f"One file changed: the registry of {tool.name} grew by {sent:.1f} MB.")
        return [*lines, "", *self.exports(name, context), "", *self.platforms(name, context), ""]


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
            sections += bench.workload(name)
    finally:
        for tool in bench.tools:
            tool.reset()
        shutil.rmtree(base / "scratch" if chosen.keep else base, ignore_errors=True)
    versions = [*(version_of(tool.name) for tool in bench.tools), "docker-registry " + version_of("docker-registry").split()[-1]]
    lines = [*sections, *report.missing(results)]
    made = report.Report("ci", chosen.runs, chosen.quick, versions, watch.end(), lines, report.rows(results), bench.values)
    report.publish(made, chosen)
