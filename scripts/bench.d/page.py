"""`scripts/bench page`: writes docs/performance.md from the figures in docs/performance.json and the text
in performance.md beside this file, where a line `{{PART}}` stands for the report of a part and `{{goals}}`
for the goals. With --check it only says whether the page is up to date."""

import argparse
import sys
from pathlib import Path

import goals
import report

ROOT = Path(__file__).resolve().parents[2]
TEXT = Path(__file__).with_name("performance.md")
PAGE = ROOT / "docs/performance.md"
FIGURES = ROOT / "docs/performance.json"
ORDER = ["build", "rebuild", "ship", "ci", "sync", "delta", "backup", "sim", "pages"]


def arguments(words):
    """Those of `scripts/bench all`."""
    parser = argparse.ArgumentParser(prog="scripts/bench all")
    parser.add_argument("--parts", default=",".join(ORDER), help=f"of: {', '.join(ORDER)}")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the data, one run")
    parser.add_argument("--runs", type=int, help="measured rounds")
    parser.add_argument("--json", metavar="FILE", default=str(FIGURES), help="where the figures are kept (default docs/performance.json)")
    chosen = parser.parse_args(words)
    chosen.parts = chosen.parts.split(",")
    if unknown := set(chosen.parts) - set(ORDER):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return chosen


def render(reports):
    lines = []
    for line in TEXT.read_text().splitlines():
        name = line.strip().removeprefix("{{").removesuffix("}}")
        if line.strip() != f"{{{{{name}}}}}":
            lines.append(line)
        elif name == "goals":
            lines += goals.table(reports)
        elif name in reports:
            lines += reports[name].text().rstrip().splitlines()
        else:
            lines.append("Not measured yet.")
    return "\n".join(lines) + "\n"


def main(words):
    parser = argparse.ArgumentParser(prog="scripts/bench page")
    parser.add_argument("--json", metavar="FILE", default=str(FIGURES))
    parser.add_argument("--check", action="store_true", help="write nothing; fail unless the page is up to date")
    chosen = parser.parse_args(words)
    text = render(report.read(chosen.json))
    if not chosen.check:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit("docs/performance.md is not what `scripts/bench page` writes: change scripts/bench.d/performance.md, and run it")
