"""`scripts/bench compare A B`: builds two commits and runs both binaries on the same data in turn."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import report
import workloads
from conditions import Conditions
from measure import Failed, Results, run
from registries import DockerRegistry
from ship_tools import ShipImgctl
from tools import IMAGE

ROOT = Path(__file__).resolve().parents[2]
PLACE = "team/cluster:v1"


def arguments(words):
    parser = argparse.ArgumentParser(prog="scripts/bench compare")
    report.options(parser, runs=5)
    parser.add_argument("commits", nargs=2, metavar="COMMIT", help="a commit, or the path of a binary")
    parser.add_argument("--workload", default="w1")
    parser.add_argument("--dir", default="/dev/shm/imgctl-bench", help="a folder on tmpfs")
    return report.parsed(parser, words)


def binary(name):
    """The release binary of a commit, built in a checkout of its own unless it is there; or the file itself."""
    if Path(name).is_file():
        return Path(name).resolve(), Path(name).name
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--verify", f"{name}^{{commit}}"], capture_output=True, text=True)
    if commit.returncode:
        sys.exit(f"scripts/bench compare: {name} is neither a file nor a commit")
    commit = commit.stdout.strip()
    built = ROOT / f"target/bench-compare/{commit}"
    if not built.exists():
        checkout = ROOT / "target/bench-compare/checkout"
        subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", checkout], capture_output=True, check=False)
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", checkout, commit], check=True)
        try:
            environment = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target/bench-compare/target")}
            subprocess.run([checkout / "scripts/build"], check=True, cwd=checkout, env=environment)
            # Older commits say where it is in another way.
            made = checkout / "target/imgctl"
            shutil.move(made, built)
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", checkout], check=True)
    return built, commit[:12]


class Version(ShipImgctl):
    def __init__(self, directory, program, name):
        self.name, self.program = name, program
        super().__init__(directory)

    def argv(self, *words):
        return [self.program, "--root", self.directory / "root", *words]

    def version(self):
        return run([self.program, "--version"])


def jobs(tool, context, registry, archive):
    """Names and acts in their order; each is what the next needs."""
    place = f"{registry.address}/{tool.name}/{PLACE}"
    emptied = lambda act: lambda: (tool.reset(), act())[1]
    return {
        "build": emptied(lambda: tool.build(context)),
        "build, nothing changed": lambda: tool.build(context),
        "build, one file changed": lambda: (workloads.change_one_file(context), tool.build(context))[1],
        "first mount": tool.first_mount,
        "mount": tool.mount,
        "save": lambda: (archive.unlink(missing_ok=True), tool.save_as(archive))[1],
        "push": lambda: tool.push_as(IMAGE, place),
        "load": emptied(lambda: tool.load(archive)),
        "pull": emptied(lambda: tool.pull(place)),
        "pull, mountable": emptied(lambda: tool.mountable(place)),
    }


def main(words):
    chosen = arguments(words)
    programs = [binary(name) for name in chosen.commits]
    names = [name for _, name in programs]
    if names[0] == names[1]:
        names = ["A", "B"]
    base = Path(chosen.dir)
    scratch = base / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    results, watch = Results(), Conditions()
    tools = [Version(base / "stores", program, name) for (program, _), name in zip(programs, names)]
    for tool in tools:
        tool.save_as = lambda archive, tool=tool: run(tool.argv("--quiet", "save", "-o", archive, IMAGE))
    lines = []
    try:
        for _ in range(21):
            for tool in tools:
                results.costs.setdefault(("-", "--version", tool.name), []).append(tool.version())
        for workload in chosen.workload.split(","):
            context = workloads.make(workload, base / "contexts", chosen.quick)
            for repeat in range(chosen.runs + 1):
                registry = DockerRegistry(scratch / "registry")
                acts = [jobs(tool, context, registry, scratch / f"{tool.name}.tar") for tool in tools]
                for job in acts[0]:
                    # Turn about, so that neither is always the first.
                    for index in ((0, 1) if repeat % 2 else (1, 0)):
                        try:
                            cost = acts[index][job]()
                            if repeat:
                                results.add(workload, job, tools[index].name, cost)
                        except Failed as error:
                            results.fail(workload, job, tools[index].name, error)
                registry.close()
    finally:
        for tool in tools:
            tool.reset()
        shutil.rmtree(base if not chosen.keep else scratch, ignore_errors=True)
    lines = table(results, names)
    sizes = [f"{name}: {Path(program).stat().st_size / 1e6:.2f} MB" for (program, _), name in zip(programs, names)]
    made = report.Report("compare", chosen.runs, chosen.quick, sizes, watch.end(), [*lines, "", *report.missing(results)],
                         report.rows(results))
    report.publish(made, chosen)


def table(results, names):
    """Ratios of the second to the first; the range is that of the pairs."""
    lines = [report.row(["workload", "job", *names, "wall B / A", "pairs", "CPU B / A", "memory B / A"]),
             report.row(["---"] * 2 + ["---:"] * 6)]
    for workload, job in dict.fromkeys((w, job) for w, job, _ in results.costs):
        one, other = (results.median((workload, job, name)) for name in names)
        if not one or not other:
            continue
        walls = [b.wall / a.wall for a, b in zip(*(results.costs[workload, job, name] for name in names))]
        lines.append(report.row([
            workload, job, report.seconds(one.wall), report.seconds(other.wall), f"{other.wall / one.wall:.2f}",
            f"{min(walls):.2f}-{max(walls):.2f}", f"{other.cpu / max(one.cpu, 1e-4):.2f}", f"{other.rss / one.rss:.2f}"]))
    return lines
