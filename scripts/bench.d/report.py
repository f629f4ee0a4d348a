"""Turns costs into a report: what a page of figures and a program need of one part of the benchmark."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import conditions

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


@dataclass
class Report:
    """The outcome of one part (`main`, `ship`, ...)."""

    part: str
    runs: int
    quick: bool
    tools: list  # versions, a line each
    conditions: dict
    lines: list  # Markdown, headings from ### on
    rows: list = field(default_factory=list)  # {workload, job, tool, wall, cpu, rss}, each a list of runs
    values: dict = field(default_factory=dict)  # single figures by name
    where: str = "stores on tmpfs"
    discarded: bool = True  # whether a first round did not count

    def text(self):
        """Markdown."""
        size = " on a twentieth of the data" if self.quick else ""
        rounds = f"Medians of {self.runs} run{'s' if self.runs > 1 else ''}{size}, tools in turn"
        rounds += ", first round discarded" if self.discarded else ""
        head = [f"{rounds}, {self.where}.", "", *conditions.told(self.conditions)]
        if self.tools:
            head.append(f"- tools: {'; '.join(self.tools)}")
        return "\n".join([*head, "", *self.lines]).rstrip() + "\n"

    def median(self, workload, job, tool, what="wall"):
        """The median of one figure; `None` if it was not measured."""
        for row in self.rows:
            if (row["workload"], row["job"], row["tool"]) == (workload, job, tool):
                values = sorted(row[what])
                middle = len(values) // 2
                return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
        return None


def publish(made, chosen):
    """Shows a report, and writes it where the options say."""
    print(made.text())
    if chosen.markdown:
        Path(chosen.markdown).write_text(made.text())
    if chosen.json:
        write({made.part: made}, Path(chosen.json))


def write(reports, file):
    """Writes reports to a file of JSON; other parts that are in it stay."""
    reports = {**read(file), **reports}
    text = json.dumps({part: vars(reports[part]) for part in sorted(reports)}, indent=1)
    file.write_text(text + "\n")


def read(file):
    """The reports in a file of JSON, by part."""
    if not Path(file).exists():
        return {}
    return {part: Report(**members) for part, members in json.loads(Path(file).read_text()).items()}


def seconds(value):
    return f"{value * 1000:.1f} ms" if value < 0.1 else f"{value:.2f} s"


def row(cells):
    return "| " + " | ".join(cells) + " |"


def spread(values):
    """The smallest and the largest of several seconds."""
    if len(values) < 2:
        return ""
    unit, scale = ("ms", 1000) if max(values) < 0.1 else ("s", 1)
    return f"{min(values) * scale:.{1 if scale > 1 else 2}f}-{max(values) * scale:.{1 if scale > 1 else 2}f} {unit}"


def table(results, workload):
    jobs = list(dict.fromkeys(job for w, job, _ in results.costs if w == workload))
    lines = [
        row(["job", "tool", "wall", "min-max", "CPU", "peak memory", "wall / imgctl", "CPU / imgctl", "imgctl / limit"]),
        row(["---"] * 2 + ["---:"] * 7),
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
            walls = spread([each.wall for each in results.costs[workload, job, tool]])
            lines.append(row([job, tool, seconds(cost.wall), walls, seconds(cost.cpu), f"{cost.rss:.0f} MiB", *ratios, bound]))
    return lines


def rows(results):
    """The costs as a report keeps them."""
    return [
        {"workload": workload, "job": job, "tool": tool, **{
            name: [round(getattr(cost, name), 4) for cost in costs] for name in ("wall", "cpu", "rss")}}
        for (workload, job, tool), costs in results.costs.items()
    ]


def missing(results):
    """What could not be measured, and why."""
    if not results.failures:
        return []
    return ["Not measured:", "", *(f"- {' '.join(key)}: {why}" for key, why in results.failures.items())]


def options(parser, runs=3):
    """The options that all parts have."""
    parser.add_argument("--quick", action="store_true", help="a twentieth of the data, one run")
    parser.add_argument("--runs", type=int, help=f"measured rounds (default {runs}; 1 with --quick)")
    parser.add_argument("--keep", action="store_true", help="keep the data for the next time")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables to this file too")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file too; its other parts stay")
    parser.set_defaults(default_runs=runs)


def parsed(parser, words):
    chosen = parser.parse_args(words)
    chosen.runs = chosen.runs or (1 if chosen.quick else chosen.default_runs)
    return chosen
