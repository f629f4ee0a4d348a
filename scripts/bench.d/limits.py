"""What the same data costs this machine without any image tool: the bounds that we compare with."""

import shutil
import subprocess
from pathlib import Path

from measure import run, total


def stat_walk(context):
    """A walk that stats every file."""
    return run(["find", context, "-printf", "%T@ %s %i\\n"])


def measure(results, workload, context, scratch, runs, only=None):
    """Walk, read, hash, compress, unpack, or `only` some of them; each `runs` times after a warm-up."""
    archive = Path(scratch) / "limit.tar"
    compressible = [name for name in sorted(p.name for p in context.iterdir()) if name != "registry"]
    subprocess.run(["tar", "-C", context, "-cf", archive, "."], check=True)
    part = Path(scratch) / "limit-part.tar"
    subprocess.run(["tar", "-C", context, "-cf", part, *compressible], check=True)
    out = Path(scratch) / "limit-out"

    def unpack():
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        return run(["tar", "-C", out, "-xf", archive])

    jobs = {
        "stat walk": lambda: stat_walk(context),
        "read": lambda: run(["sh", "-c", f"find {context} -type f -print0 | xargs -0 cat > /dev/null"]),
        "sha256": lambda: run(["openssl", "dgst", "-sha256", archive]),
        "zstd -3 -T2": lambda: run(["zstd", "-q", "-3", "-T2", "-c", part, "-o", "/dev/null", "-f"]),
        "tar x": unpack,
    }
    for repeat in range(runs + 1):
        sums = []
        for name, job in jobs.items():
            if only and name not in only:
                continue
            cost = job()
            if name in ("read", "sha256", "zstd -3 -T2"):
                sums.append(cost)
            if repeat:
                results.add(workload, name, "limit", cost)
        if repeat and not only:
            results.add(workload, "read+sha256+zstd", "limit", total(sums))
    for path in (archive, part):
        path.unlink()
    shutil.rmtree(out, ignore_errors=True)
