"""Under which conditions figures came about: the machine, the commit, the tools, and how much of the
CPUs other processes used meanwhile. Knows nothing of what is measured."""

import os
import platform
import resource
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path

# Share of the CPUs, in percent, from which on other processes make wall times unreliable.
BUSY = 10
TICKS = os.sysconf("SC_CLK_TCK")


def first_line(*argv):
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return f"{argv[0]}: not here"


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal"))
    return f"{os.cpu_count()} x {model}, {memory // 1024 // 1024} GiB, Linux {platform.release()}"


def commit():
    """The commit of this checkout; with a plus sign if files differ from it."""
    root = Path(__file__).parent
    changed = subprocess.run(["git", "-C", root, "status", "--porcelain", "--untracked-files=no"],
                             capture_output=True, text=True, check=False).stdout
    return first_line("git", "-C", str(root), "rev-parse", "--short=12", "HEAD") + ("+" if changed.strip() else "")


def used():
    """CPU seconds that all processes of the machine have used, and those of ours that have ended."""
    fields = [int(field) for field in open("/proc/stat").readline().split()[1:]]
    # user, nice, system, irq, softirq; not idle, iowait and what the host took.
    everything = sum(fields[n] for n in (0, 1, 2, 5, 6)) / TICKS
    who = [resource.getrusage(which) for which in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    return everything, sum(usage.ru_utime + usage.ru_stime for usage in who)


class Conditions:
    """Watches the machine from its creation to `end`."""

    def __init__(self):
        self.start, self.before, self.loads = time.monotonic(), used(), [os.getloadavg()[0]]
        self.date = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")

    def end(self, extra_cpu=0.0):
        """What a report says. `extra_cpu` are CPU seconds of ours that are no children's: those of hosts."""
        self.loads.append(os.getloadavg()[0])
        after, wall = used(), time.monotonic() - self.start
        others = (after[0] - self.before[0]) - (after[1] - self.before[1]) - extra_cpu
        percent = max(0.0, 100 * others / (wall * os.cpu_count()))
        return {"date": self.date, "commit": commit(), "machine": machine(), "load": [round(load, 1) for load in self.loads],
                "others": round(percent, 1), "minutes": round(wall / 60, 1)}


def told(conditions):
    """Lines about them, with a warning where the machine was busy. Figures from elsewhere have a note instead."""
    if "note" in conditions:
        return [f"- {conditions['note']}"]
    low, high = sorted(conditions["load"])
    lines = [
        f"- measured {conditions['date']} UTC, commit {conditions['commit']}, {conditions['minutes']:g} min",
        f"- machine: {conditions['machine']}; load average {low:.1f} to {high:.1f}, other processes used "
        f"{conditions['others']:.0f} % of the CPUs",
    ]
    if conditions["others"] >= BUSY:
        lines.append("- **The machine was busy: CPU seconds and bytes are reliable, wall times are not.**")
    return lines
