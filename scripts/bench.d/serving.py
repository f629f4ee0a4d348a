"""How fast registries answer: the same tree behind each, asked by 32 clients at once through wrk."""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from statistics import median

CLIENTS = 32
# Of a layer, so that each client has many answers in the time that there is.
PART = 4 << 20
PART_LABEL = f"GET {PART >> 20} MiB of a layer"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass
class Load:
    requests: float  # per second
    bytes: float  # MB per second
    cpu: float  # of the server, milliseconds per request
    per_gb: float  # of the server, CPU seconds per 10^9 bytes
    p99: float  # milliseconds
    peak: float  # MiB, of the server since its start


def wrk(registry, path, headers, seconds):
    words = ["wrk", "-t2", f"-c{CLIENTS}", f"-d{seconds}s", "--latency", "--timeout", "30s"]
    words += [word for header in headers for word in ("-H", header)]
    before = registry.cpu()
    text = subprocess.run([*words, f"http://{registry.address}{path}"], capture_output=True, text=True, check=True).stdout
    spent = registry.cpu() - before
    if re.search(r"Non-2xx|Socket errors", text):
        raise RuntimeError(f"{registry.name}: {path}: {text}")
    count = int(re.search(r"(\d+) requests in", text)[1])
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1])
    amount, unit = re.search(r"Transfer/sec:\s+([\d.]+)(KB|MB|GB|B)", text).groups()
    factor = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}[unit]
    late, unit = re.search(r"99%\s+([\d.]+)(us|ms|s)", text).groups()
    late = float(late) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit]
    rate_bytes = float(amount) * factor
    total = rate_bytes * count / max(rate, 1e-3)
    return Load(rate, rate_bytes / 1e6, spent * 1000 / max(count, 1), spent / max(total / 1e9, 1e-6), late, registry.peak())


def paths(data, repository, tag):
    """What is asked for: the manifest, its config, its largest layer; found in the tree on disk."""
    top = Path(data) / "docker/registry/v2"
    link = top / f"repositories/{repository}/_manifests/tags/{tag}/current/link"
    digest = link.read_text().strip()

    def blob(digest):
        hex_ = digest.removeprefix("sha256:")
        return top / "blobs/sha256" / hex_[:2] / hex_ / "data"

    manifest = json.loads(blob(digest).read_text())
    largest = max(manifest["layers"], key=lambda layer: layer["size"])
    api = f"/v2/{repository}"
    return {
        "GET manifest": (f"{api}/manifests/{tag}", [f"Accept: {MANIFEST}"]),
        "GET config": (f"{api}/blobs/{manifest['config']['digest']}", []),
        PART_LABEL: (f"{api}/blobs/{largest['digest']}", [f"Range: bytes=0-{PART - 1}"]),
    }


def measure(kinds, data, repository, tag, runs, seconds, say):
    """Medians by (request, registry): each registry in turn, freshly started for each request."""
    loads = {}
    for repeat in range(runs + 1):
        for request, (path, headers) in paths(data, repository, tag).items():
            for kind in kinds:
                registry = kind(data)
                try:
                    load = wrk(registry, path, headers, seconds)
                finally:
                    registry.close(remove=False)
                if repeat:
                    loads.setdefault((request, kind.name), []).append(load)
                    say(f"  {request:<22} {kind.name:<16} {load.requests:9.0f}/s {load.bytes:8.0f} MB/s "
                        f"{load.cpu:7.3f} CPU ms  {load.p99:7.2f} ms  {load.peak:5.0f} MiB")
    fields = ("requests", "bytes", "cpu", "per_gb", "p99", "peak")
    return {key: Load(*(median(getattr(load, field) for load in many) for field in fields)) for key, many in loads.items()}


def table(loads):
    lines = [
        "| request | registry | requests/s | MB/s | CPU ms/request | CPU s/GB | 99 % within | peak memory |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (request, name), load in loads.items():
        # Of small answers the bytes cost nothing.
        per_gb = f"{load.per_gb:.2f}" if request == PART_LABEL else ""
        lines.append(f"| {request} | {name} | {load.requests:,.0f} | {load.bytes:,.0f} | {load.cpu:.3f} "
                     f"| {per_gb} | {load.p99:.1f} ms | {load.peak:.0f} MiB |")
    return lines
