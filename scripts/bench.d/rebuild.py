"""`scripts/bench rebuild`: builds of unchanged contexts, in turn with a `find` that stats the same files; size and
start-up time of the binary."""

import argparse
import os
import shutil
from pathlib import Path

import report
import workloads
from conditions import Conditions
from limits import stat_walk
from measure import Results
from tools import Imgctl


def main(words):
    parser = argparse.ArgumentParser(prog="scripts/bench rebuild")
    report.options(parser, runs=15)
    parser.add_argument("--workload", default="w1,w2")
    parser.add_argument("--dir", default="/dev/shm/imgctl-bench-rebuild", help="a folder on tmpfs")
    chosen = report.parsed(parser, words)
    base, results, watch = Path(chosen.dir), Results(), Conditions()
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    tool = Imgctl(base / "stores")
    try:
        for _ in range(21):
            results.add("-", "--version", "imgctl", tool.version())
        for workload in chosen.workload.split(","):
            context = workloads.make(workload, base / "contexts", chosen.quick)
            tool.reset()
            tool.build(context)
            for repeat in range(chosen.runs + 1):
                for job, name, act in (("rebuild", "imgctl", lambda: tool.build(context)),
                                       ("stat walk", "limit", lambda: stat_walk(context))):
                    cost = act()
                    if repeat:
                        results.add(workload, job, name, cost)
        tool.reset()
    finally:
        shutil.rmtree(base, ignore_errors=True)
    size = os.path.getsize(os.environ["IMGCTL"])
    lines = [f"The binary has {size / 1e6:.1f} MB.", ""]
    for workload in dict.fromkeys(w for w, _, _ in results.costs):
        title = "Start-up" if workload == "-" else workload.upper()
        lines += [f"### {title}", "", *report.table(results, workload), ""]
    made = report.Report("rebuild", chosen.runs, chosen.quick, [], watch.end(), lines, report.rows(results), {"binary": size})
    report.publish(made, chosen)
