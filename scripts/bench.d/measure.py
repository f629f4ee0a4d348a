"""Runs one command and says what it cost: wall time, CPU time, peak memory.

Knows nothing of images. CPU and memory are those of the process and of all children it waited for
(wait4), so a tool that starts itself again, or a compressor, is counted.

A child's peak starts at this process's own size (the fork counts), so nothing here may grow: about
20 MiB is the floor of every figure.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from statistics import median


@dataclass
class Cost:
    wall: float  # seconds
    cpu: float  # seconds, user + system
    rss: float  # MiB, of the largest single process


class Failed(Exception):
    pass


def run(argv, cwd=None, env=None, keep_output=False):
    """The cost of one command, and its standard output if that is wanted."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd, env=env)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        text = out.read().decode(errors="replace")
        if child.returncode != 0:
            complaint = err.read().decode(errors="replace")[-1500:]
            raise Failed(f"{' '.join(map(str, argv))}: exit {child.returncode}\n{complaint}")
        cost = Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
        return (cost, text.strip()) if keep_output else cost


def total(costs):
    """Several commands that make up one job."""
    return Cost(sum(c.wall for c in costs), sum(c.cpu for c in costs), max(c.rss for c in costs))


class Results:
    """Costs by (workload, job, tool)."""

    def __init__(self):
        self.costs = {}
        self.failures = {}

    def add(self, workload, job, tool, cost):
        self.costs.setdefault((workload, job, tool), []).append(cost)
        print(f"  {workload} {job:<22} {tool:<12} {cost.wall:8.3f} s  {cost.cpu:7.2f} CPU s  {cost.rss:6.0f} MiB",
              file=sys.stderr, flush=True)

    def fail(self, workload, job, tool, error):
        if (workload, job, tool) not in self.failures:
            print(f"  {workload} {job} {tool}: {error}", file=sys.stderr, flush=True)
        self.failures[workload, job, tool] = str(error).splitlines()[0][:150]

    def median(self, key):
        costs = self.costs.get(key)
        if not costs:
            return None
        return Cost(*(median(getattr(c, field) for c in costs) for field in ("wall", "cpu", "rss")))
