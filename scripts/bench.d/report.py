"""Turns costs into tables: one per workload, readable as text and as Markdown."""

import os
import platform
import subprocess

PEERS = ["buildah", "podman", "umoci"]

# Which limit a job is held against.
LIMITS = {
    "build": "read+sha256+zstd",
    "rebuild": "stat walk",
    "unpack": "tar x",
    "first mount": "tar x",
}


def first_line(*argv):
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return f"{argv[0]}: not here"


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal"))
    return f"{os.cpu_count()} x {model}, {memory // 1024 // 1024} GiB, Linux {platform.release()}, stores on tmpfs"


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


def render(results, runs, quick):
    lines = [
        f"Medians of {runs} run{'s' if runs > 1 else ''}{' on a twentieth of the data' if quick else ''}; tools in turn, first round discarded.",
        "",
        f"- machine: {machine()}",
        f"- tools: {first_line('buildah', '--version')}; {first_line('podman', '--version')}; "
        f"{first_line('umoci', '--version')}; {first_line(os.environ['IMGCTL'], '--version')}",
        "",
    ]
    for workload in dict.fromkeys(w for w, _, _ in results.costs):
        title = "Start-up" if workload == "-" else workload.upper()
        lines += [f"### {title}", "", *table(results, workload), ""]
    if results.failures:
        lines += ["Not measured:", ""]
        lines += [f"- {' '.join(key)}: {why}" for key, why in results.failures.items()]
    return "\n".join(lines)
