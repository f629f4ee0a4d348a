"""Makes the build contexts. The same seed gives the same tree; W1 samples this machine's /usr, so its
bytes differ from machine to machine, its sizes do not.

W1: like a cluster image: 20,000 files, 610 MB of programs and libraries, 500 MB of compressed blobs
in docker-distribution layout. W2: 100,000 small files. W3: 30 layers.
"""

import hashlib
import os
import random
import stat
import subprocess
import sys
from pathlib import Path

MB = 1_000_000


def make(name, directory, quick):
    """Makes context `name` in `directory` unless it is there; gives its path.

    In a process of its own: what that holds in memory would count as the measured children's.
    """
    context = Path(directory) / f"{name}{'-quick' if quick else ''}"
    done = context.with_suffix(".done")
    if not done.exists():
        context.mkdir(parents=True)
        subprocess.run([sys.executable, __file__, name, context, "20" if quick else "1"], check=True)
        done.touch()
    return context


def w1(context, divide):
    rootfs(context, 19_500 // divide, 610 * MB // divide)
    registry(context / "registry", 500 * MB // divide, 5 * MB)
    (context / "Kubefile").write_text('FROM scratch\nLABEL sealos.io.type="rootfs" version="v1.0.0"\nCOPY . .\n')


def w2(context, divide):
    rng = random.Random(2)
    words = [f"word{n} " for n in range(4000)]
    for n in range(100_000 // divide):
        folder = context / f"manifests/{n % 50:02}/{n // 50 % 40:02}"
        if n < 2000:
            folder.mkdir(parents=True, exist_ok=True)
        size = rng.randrange(400, 4700)
        (folder / f"f{n}.yaml").write_text("".join(rng.choices(words, k=size // 8)).ljust(size)[:size])
    (context / "Kubefile").write_text("FROM scratch\nCOPY . .\n")


def w3(context, divide):
    lines = ["FROM scratch"]
    files = samples(random.Random(3))
    for n in range(30):
        folder = context / f"part{n:02}"
        take(files, folder, 200 // divide, 11 * MB // divide)
        lines.append(f"COPY part{n:02} /part{n:02}")
    (context / "Kubefile").write_text("\n".join(lines) + "\n")


def rootfs(context, count, size):
    take(samples(random.Random(1)), context / "usr", count, size)
    (context / "etc").mkdir()
    (context / "etc/marker").write_text("0\n")


def samples(rng):
    """Regular files of this machine's /usr in a random order, without end."""
    found = []
    for folder, _, names in os.walk("/usr"):
        for name in names:
            path = os.path.join(folder, name)
            try:
                meta = os.lstat(path)
            except OSError:
                continue
            if stat.S_ISREG(meta.st_mode) and 0 < meta.st_size < 40 * MB:
                found.append((path, meta.st_size))
    found.sort()
    while True:
        rng.shuffle(found)
        yield from found


def take(files, target, count, size):
    """Copies `count` files of `size` bytes together; the last tenth of them fills what lacks."""
    rng = random.Random(4)
    written, place, filler = 0, 0, []
    while place < count * 9 // 10:
        path, length = next(files)
        # Stay below the line from nothing to `size`, so that the sizes come out even.
        if written + length > size * (place + 1) / count + size * 0.03:
            continue
        try:
            data = Path(path).read_bytes()
        except OSError:
            continue
        if length > 200_000 and len(filler) < 50:
            filler.append(data)
        store(target, place, data, path.endswith((".so", ".sh")) or os.access(path, os.X_OK))
        written += len(data)
        place += 1
    source = b"".join(filler) or rng.randbytes(10 * MB)
    while place < count:
        length = min(max(1, (size - written) // (count - place)), len(source))
        at = rng.randrange(len(source) - length + 1)
        store(target, place, source[at : at + length], False)
        written += length
        place += 1


def store(target, place, data, executable):
    folder = target / f"d{place % 97:02}" / f"e{place // 97 % 23:02}"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"f{place}"
    file.write_bytes(data)
    file.chmod(0o755 if executable else 0o644)
    if place % 100 == 0:
        (folder / f"link{place}").symlink_to(file.name)


def registry(target, size, each):
    """Blobs that do not compress, in docker-distribution's layout, ten to a repository."""
    rng = random.Random(5)
    top = target / "docker/registry/v2"
    for n in range(max(1, size // each)):
        data = rng.randbytes(each)
        digest = hashlib.sha256(data).hexdigest()
        blob = top / "blobs/sha256" / digest[:2] / digest / "data"
        link = top / f"repositories/library/app{n // 10}/_layers/sha256" / digest / "link"
        for path, content in ((blob, data), (link, f"sha256:{digest}".encode())):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def change_one_file(context):
    """Makes one small file different from what it was in any run before."""
    candidates = ["etc/marker", "manifests/07/07/f357.yaml", "part15/d00/e00/f0"]
    file = next(context / name for name in candidates if (context / name).exists())
    with open(file, "ab") as end:
        end.write(os.urandom(4).hex().encode() + b"\n")


if __name__ == "__main__":
    {"w1": w1, "w2": w2, "w3": w3}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
