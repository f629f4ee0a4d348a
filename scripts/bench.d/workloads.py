"""Makes the build contexts. The same seed gives the same tree; W1 samples this machine's /usr, so its
bytes differ from machine to machine, its sizes do not.

W1: like a cluster image: 20,000 files, 610 MB of programs and libraries, 500 MB of compressed blobs
in docker-distribution layout. W2: 100,000 small files. W3: 30 layers. `delta`: W1 with an 80 MB program (directory `old`), and
its next version (`new`).
"""

import hashlib
import os
import random
import re
import shutil
import stat
import struct
import subprocess
import sys
from bisect import bisect_right
from itertools import accumulate
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


def delta(context, divide):
    """Two versions: of 400 files 20 change by 1 %, the large program is linked again with small changes, one
    of 20 embedded images is another."""
    old, new = context / "old", context / "new"
    old.mkdir()
    w1(old, divide)
    program = next(programs(80 * MB // divide))
    (old / "usr/bin").mkdir(exist_ok=True)
    (old / "usr/bin/program").write_bytes(program)
    (old / "usr/bin/program").chmod(0o755)
    shutil.copytree(old, new, symlinks=True)
    rng = random.Random(6)
    (new / "usr/bin/program").write_bytes(relinked(program, rng))
    files = [path for path in sorted(new.glob("usr/d*/e*/f*")) if path.stat().st_size > 2000]
    for path in rng.sample(files, max(2, 20 // divide)):
        data = bytearray(path.read_bytes())
        count = max(1, len(data) // 100)
        at = rng.randrange(len(data) - count)
        data[at : at + count] = rng.randbytes(count)
        path.write_bytes(data)
    blobs = sorted(new.glob("registry/docker/registry/v2/blobs/sha256/*/*/data"))
    for path in blobs[: max(1, len(blobs) // 20)]:
        replace_blob(new / "registry/docker/registry/v2", path, rng.randbytes(path.stat().st_size))


def programs(size):
    """Bytes of this machine's largest programs, one after the other, `size` together."""
    found = sorted({path: length for path, length in everything() if length > MB // 4}.items(), key=lambda item: -item[1])
    whole = bytearray()
    while True:
        for path, _ in found:
            whole += Path(path).read_bytes()
            if len(whole) >= size:
                yield bytes(whole[:size])
                return


def relinked(program, rng):
    """What a patch release does to a program: code is inserted at a few places, and every relative call
    across such a place has another distance."""
    step = 64 << 10
    borders = [at + rng.randrange(step // 2) for at in range(0, len(program) - step, step)]
    grown = [rng.randrange(0, 128) for _ in borders]
    sums = [0, *accumulate(grown)]
    shift_at = lambda place: sums[bisect_right(borders, place)]
    parts, start = [], 0
    for border, size in zip(borders, grown):
        parts += [program[start:border], rng.randbytes(size)]
        start = border
    parts.append(program[start:])
    whole = bytearray(b"".join(parts))
    # Calls, jumps, and what addresses data relative to the instruction.
    for call in re.finditer(rb"[\xe8\xe9]|[\x48\x4c][\x8b\x8d\x89][\x05\x0d\x15\x1d\x25\x2d\x35\x3d]", program):
        at, field = call.start(), call.end()
        if field + 4 > len(program):
            break
        distance = struct.unpack_from("<i", program, field)[0]
        target = field + 4 + distance
        # Only what looks like an address in the neighbourhood.
        if not 0 <= target < len(program) or abs(distance) > 8 << 20:
            continue
        shift = shift_at(at)
        struct.pack_into("<i", whole, field + shift, distance + shift_at(target) - shift)
    return bytes(whole)


def replace_blob(top, path, data):
    """Puts other content in the place of a blob of a registry's tree."""
    former, digest = path.parent.name, hashlib.sha256(data).hexdigest()
    blob = top / "blobs/sha256" / digest[:2] / digest / "data"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(data)
    shutil.rmtree(path.parent)
    for link in top.glob(f"repositories/library/*/_layers/sha256/{former}/link"):
        other = link.parent.parent / digest / "link"
        other.parent.mkdir()
        other.write_text(f"sha256:{digest}")
        shutil.rmtree(link.parent)


def rootfs(context, count, size):
    take(samples(random.Random(1)), context / "usr", count, size)
    (context / "etc").mkdir()
    (context / "etc/marker").write_text("0\n")


def samples(rng):
    """Regular files of this machine's /usr in a random order, without end."""
    found = everything()
    while True:
        rng.shuffle(found)
        yield from found


def everything():
    """Paths and sizes of this machine's regular files in /usr, sorted."""
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
    return sorted(found)


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
    {"w1": w1, "w2": w2, "w3": w3, "delta": delta}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
