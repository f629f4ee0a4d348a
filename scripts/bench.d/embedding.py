"""Twenty container images on eight base layers, embedded in a cluster image: what crosses the wire,
what is written, and what one changed image costs after that. Counted in the upstream's access log."""

import json
import random
import shutil
import subprocess

from measure import run
from registries import DockerRegistry

IMAGES = 20
BASE_LAYERS = 8
BASE = 5_000_000
OWN = 3_000_000


def layer(folder, name, size, seed):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(random.Random(seed).randbytes(size))


def push_image(tool, upstream, scratch, number, version):
    """The image `appNN:v1`: eight layers that all have, and its own."""
    context = scratch / "app"
    shutil.rmtree(context, ignore_errors=True)
    lines = ["FROM scratch"]
    for n in range(BASE_LAYERS):
        layer(context, f"base{n}", BASE, n)
        lines.append(f"COPY base{n} /base{n}")
    layer(context, "own", OWN, f"{number}-{version}")
    (context / "Kubefile").write_text("\n".join([*lines, "COPY own /own"]) + "\n")
    name = f"{upstream.address}/team/app{number:02}:v1"
    run(tool.argv("--quiet", "build", "--save-image=false", "-t", name, "-f", context / "Kubefile", context))
    run(tool.argv("--quiet", "push", "--tls-verify=false", name))
    shutil.rmtree(context)


def fetched(upstream, since):
    """Requests for blobs and their bytes, by digest, since entry `since` of the log."""
    blobs = {}
    for method, path, status, size in upstream.accesses()[since:]:
        if method == "GET" and "/blobs/" in path and status in (200, 206):
            count, total = blobs.get(path.rpartition("/")[2], (0, 0))
            blobs[path.rpartition("/")[2]] = (count + 1, total + size)
    return blobs


def told(tool, *words):
    """What a command says of itself with --json."""
    output = subprocess.run(tool.argv("--json", *words), capture_output=True, text=True, check=True).stdout
    document = json.loads(output)
    return document[0] if isinstance(document, list) else document


def bytes_in(directory):
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


def measure(maker, builder, puller, scratch):
    """Rows of the table. `maker` makes the images, `builder` embeds them and pushes, `puller` pulls."""
    upstream = DockerRegistry(scratch / "upstream", logs=True)
    target = DockerRegistry(scratch / "target")
    context = scratch / "cluster"
    rows = []
    try:
        for number in range(IMAGES):
            push_image(maker, upstream, scratch, number, 1)
        (context / "images/shim").mkdir(parents=True)
        names = [f"{upstream.address}/team/app{number:02}:v1\n" for number in range(IMAGES)]
        (context / "images/shim/list").write_text("".join(names))
        (context / "Kubefile").write_text("FROM scratch\nCOPY Kubefile /Kubefile\n")
        for version, what in ((1, f"{IMAGES} images"), (2, f"1 of {IMAGES} changed")):
            if version == 2:
                push_image(maker, upstream, scratch, 7, 2)
            since, before = len(upstream.accesses()), bytes_in(builder.directory)
            place = f"{target.address}/cluster:v{version}"
            words = ["--quiet", "build", "--tls-verify=false", "-t", place, "-f", context / "Kubefile", context]
            cost = run(builder.argv(*words))
            blobs = fetched(upstream, since)
            written = bytes_in(builder.directory) - before
            pushed = told(builder, "push", "--tls-verify=false", place)
            pulled = told(puller, "pull", "--tls-verify=false", place)
            rows.append((what, cost, blobs, written, pushed, pulled))
    finally:
        upstream.close()
        target.close()
        shutil.rmtree(context, ignore_errors=True)
        for tool in (maker, builder, puller):
            tool.reset()
    return rows


def table(rows):
    lines = [
        f"{IMAGES} images of {BASE_LAYERS} shared layers of {BASE // 10**6} MB and one of {OWN // 10**6} MB: "
        f"{(BASE_LAYERS * BASE + IMAGES * OWN) // 10**6} MB of distinct blobs.",
        "",
        "| build with | wall | CPU | blobs fetched | more than once | MB fetched | MB the store grew "
        "| blobs pushed | MB pushed | blobs pulled | MB pulled |",
        "| --- |" + " ---: |" * 10,
    ]
    for what, cost, blobs, written, pushed, pulled in rows:
        again = sum(count > 1 for count, _ in blobs.values())
        size = sum(size for _, size in blobs.values())
        cells = [what, f"{cost.wall:.2f} s", f"{cost.cpu:.2f} s", len(blobs), again, f"{size / 1e6:.1f}",
                 f"{written / 1e6:.1f}", pushed["blobs"]["copied"], f"{pushed['bytesCopied'] / 1e6:.1f}",
                 pulled["blobs"]["copied"], f"{pulled['bytesCopied'] / 1e6:.1f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines
