"""`scripts/bench`: builds, mounts, archives. Each round runs every tool once, in turn, so that what else
happens on the machine falls on all of them; the first round is thrown away."""

import argparse
import os
import shutil
import sys
from pathlib import Path

import limits
import report
import workloads
from conditions import Conditions, first_line
from measure import Failed, Results
from tools import Buildah, Imgctl, Podman, Umoci, layout_for_peers

BUILD_JOBS = ["build", "rebuild", "rebuild one file", "mount", "save"]
ALL_JOBS = [*BUILD_JOBS, "load", "unpack", "start", "limits"]


def arguments(words):
    parser = argparse.ArgumentParser(prog="scripts/bench")
    report.options(parser)
    parser.add_argument("--workload", default="w1,w2,w3")
    parser.add_argument("--tools", default="buildah,podman,umoci,imgctl")
    parser.add_argument("--jobs", default=",".join(ALL_JOBS), help=f"of: {', '.join(ALL_JOBS)}")
    parser.add_argument("--dir", default="/dev/shm/imgctl-bench", help="a folder on tmpfs")
    chosen = report.parsed(parser, words)
    chosen.jobs = [job.strip() for job in chosen.jobs.split(",")]
    chosen.tools = chosen.tools.split(",")
    if unknown := set(chosen.jobs) - set(ALL_JOBS):
        parser.error(f"no such job: {', '.join(sorted(unknown))}")
    return chosen


def build_round(tool, context, workload, jobs, results, scratch, count):
    """The jobs that follow from a build, in the order in which a user would meet them."""
    archive = scratch / "saved.tar"

    def once(job, act):
        # The build is what the others need.
        if job not in (*jobs, "build", "erofs mount", "first mount"):
            return
        try:
            cost = act()
            if count:
                results.add(workload, job, tool.name, cost)
        except Failed as error:
            results.fail(workload, job, tool.name, error)

    def changed():
        workloads.change_one_file(context)
        return tool.build(context)

    tool.reset()
    once("build", lambda: tool.build(context))
    once("rebuild", lambda: tool.build(context))
    once("rebuild one file", changed)
    if tool.name == "imgctl" and "mount" in jobs:
        once("erofs mount", tool.erofs_mount)
        once("first mount", tool.first_mount)
    once("mount", tool.mount)
    archive.unlink(missing_ok=True)
    once("save", lambda: tool.save(archive))
    archive.unlink(missing_ok=True)
    tool.reset()


def distribution_rounds(tools, context, workload, chosen, results, scratch):
    """Loading an archive and unpacking an image: every tool reads the same bytes."""
    imgctl = next((tool for tool in tools if tool.name == "imgctl"), None)
    if imgctl is None:
        return
    layout, archive = scratch / "layout", scratch / "same.tar"
    try:
        layout_for_peers(imgctl, context, layout)
        imgctl.save(archive)
    except Failed as error:
        results.fail(workload, "load and unpack", "imgctl", error)
        return
    for repeat in range(chosen.runs + 1):
        for tool in tools:
            for job in ("load", "unpack"):
                if job not in chosen.jobs:
                    continue
                tool.reset()
                try:
                    if tool.name == "imgctl" and job == "unpack":
                        tool.load(archive)
                        cost = tool.first_mount()
                    elif hasattr(tool, job):
                        cost = getattr(tool, job)(archive if job == "load" else layout)
                    else:
                        continue
                    if repeat:
                        results.add(workload, job, tool.name, cost)
                except Failed as error:
                    results.fail(workload, job, tool.name, error)
            tool.reset()
    archive.unlink(missing_ok=True)
    shutil.rmtree(layout, ignore_errors=True)


def main(words):
    chosen = arguments(words)
    base = Path(chosen.dir)
    scratch = base / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    classes = {"buildah": Buildah, "podman": Podman, "umoci": Umoci, "imgctl": Imgctl}
    tools = [classes[name](base / "stores") for name in chosen.tools]
    results, watch = Results(), Conditions()
    try:
        if "start" in chosen.jobs:
            for _ in range(21):
                for tool in tools:
                    results.costs.setdefault(("-", "--version", tool.name), []).append(tool.version())
        for workload in chosen.workload.split(","):
            print(f"{workload}: making the context", file=sys.stderr, flush=True)
            context = workloads.make(workload, base / "contexts", chosen.quick)
            if set(chosen.jobs) & set(BUILD_JOBS):
                for repeat in range(chosen.runs + 1):
                    for tool in tools:
                        # podman builds with buildah's code: measuring it twice says nothing.
                        if hasattr(tool, "build") and tool.name != "podman":
                            build_round(tool, context, workload, chosen.jobs, results, scratch, count=repeat)
            if {"load", "unpack"} & set(chosen.jobs):
                distribution_rounds(tools, context, workload, chosen, results, scratch)
            if "limits" in chosen.jobs:
                limits.measure(results, workload, context, scratch, chosen.runs)
    finally:
        for tool in tools:
            tool.reset()
        shutil.rmtree(base if not chosen.keep else scratch, ignore_errors=True)
    lines = []
    for workload in dict.fromkeys(w for w, _, _ in results.costs):
        title = "Start-up" if workload == "-" else workload.upper()
        lines += [f"### {title}", "", *report.table(results, workload), ""]
    versions = [first_line(tool, "--version") for tool in ("buildah", "podman", "umoci", os.environ["IMGCTL"])]
    made = report.Report("build", chosen.runs, chosen.quick, versions, watch.end(), [*lines, *report.missing(results)],
                         report.rows(results))
    report.publish(made, chosen)
