"""Turns costs into tables: one per workload, readable as text and as Markdown."""

import os
import platform
import subprocess

PEERS = ["buildah", "podman", "umoci", "skopeo", "crane"]

# Which limit a job is held against.
LIMITS = {
    "build": "read+sha256+zstd",
    "rebuild": "stat walk",
    "unpack": "tar x",
    "first mount": "tar x",
    "pull gzip, mountable": "tar x",
    "pull zstd, mountable": "tar x",
}


def first_line(*argv):
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return f"{argv[0]}: not here"


def machine(where="stores on tmpfs"):
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal"))
    return f"{os.cpu_count()} x {model}, {memory // 1024 // 1024} GiB, Linux {platform.release()}, {where}"


def seconds(value):
    return f"{value * 1000:.1f} ms" if value < 0.1 else f"{value:.2f} s"


def row(cells):
    return "| " + " | ".join(cells) + " |"


def table(results, workload):
    jobs = list(dict.fromkeys(job for w, job, _ in results.costs if w == workload))
    lines = [
        row(["job", "tool", "wall", "CPU", "peak memory", "wall / imgctl", "CPU / imgctl", "imgctl / limit"]),
        row(["---"] * 2 + ["---:"] * 6),
    ]
    for job in jobs:
        ours = results.median((workload, job, "imgctl"))
        limit = results.median((workload, LIMITS.get(job, ""), "limit"))
        for tool in [*PEERS, "imgctl", "limit"]:
            cost = results.median((workload, job, tool))
            if cost is None:
                continue
            ratios = ["", ""]
            if ours and tool in PEERS:
                ratios = [f"{cost.wall / ours.wall:.1f}x", f"{cost.cpu / max(ours.cpu, 1e-3):.1f}x"]
            bound = f"{ours.wall / limit.wall:.2f}" if tool == "imgctl" and limit else ""
            lines.append(row([job, tool, seconds(cost.wall), seconds(cost.cpu), f"{cost.rss:.0f} MiB", *ratios, bound]))
    return lines


def head(runs, quick, tools, loads):
    """How the tables below came about."""
    size = " on a twentieth of the data" if quick else ""
    lines = [
        f"Medians of {runs} run{'s' if runs > 1 else ''}{size}; tools in turn, first round discarded.",
        "",
        f"- machine: {machine()}; load average {' to '.join(f'{load:.1f}' for load in loads)}",
        f"- tools: {'; '.join(tools)}",
        "",
    ]
    return "\n".join(lines) + "\n"


def missing(results):
    """What could not be measured, and why."""
    if not results.failures:
        return []
    return ["Not measured:", "", *(f"- {' '.join(key)}: {why}" for key, why in results.failures.items())]


def render(results, runs, quick, loads):
    tools = [first_line(tool, "--version") for tool in ("buildah", "podman", "umoci", os.environ["IMGCTL"])]
    lines = []
    for workload in dict.fromkeys(w for w, _, _ in results.costs):
        title = "Start-up" if workload == "-" else workload.upper()
        lines += [f"### {title}", "", *table(results, workload), ""]
    return head(runs, quick, tools, loads) + "\n".join([*lines, *missing(results)])
