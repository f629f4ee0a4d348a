"""The benchmark's command line: which part runs."""

import sys

import backup
import build
import compare
import delta
import page
import pages
import pipeline
import rebuild
import ship
import simulation
import sync_hosts

PARTS = {"build": build.main, "rebuild": rebuild.main, "ship": ship.main, "ci": pipeline.main, "sync": sync_hosts.main, "delta": delta.main, "backup": backup.main,
         "sim": simulation.main, "pages": pages.main, "compare": compare.main, "page": page.main}


def everything(words):
    """`scripts/bench all`: every part, then the page of figures."""
    chosen = page.arguments(words)
    for part in chosen.parts:
        print(f"== {part}", file=sys.stderr, flush=True)
        own = ["--json", chosen.json]
        if chosen.quick:
            own.append("--quick")
        if chosen.runs and part != "sim":
            own += ["--runs", str(chosen.runs)]
        PARTS[part](own)
    page.main(["--json", chosen.json])


if __name__ == "__main__":
    name, words = (sys.argv[1], sys.argv[2:]) if sys.argv[1:2] and not sys.argv[1].startswith("-") else ("build", sys.argv[1:])
    if name == "all":
        everything(words)
    elif name in PARTS:
        PARTS[name](words)
    else:
        sys.exit(f"scripts/bench: no such part: {name} (all, {', '.join(PARTS)})")
