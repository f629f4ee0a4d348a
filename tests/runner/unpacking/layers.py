"""Writes layers as Python's tarfile does.

  layers.py tree FORMAT DIRECTORY   to standard output: the directory, in one of tarfile's formats
  layers.py random SEED COUNT OUT   COUNT images of random layers: OUT/<image>/<layer>.tar
"""

import io
import os
import random
import sys
import tarfile

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def xattrs(path):
    names = os.listxattr(path, follow_symlinks=False)
    return {
        "SCHILY.xattr." + name: os.getxattr(path, name, follow_symlinks=False).decode("utf-8", "surrogateescape")
        for name in names
    }


def tree(form, directory):
    def described(info):
        # tarfile knows nothing of attributes; only pax can say them.
        if form == "pax" and not info.islnk():
            info.pax_headers.update(xattrs(info.name))
        return info

    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=FORMATS[form], errors="surrogateescape") as tar:
        tar.add(directory, filter=described)


NAMES = ["a", "b", "c", ".d", "e-f", "\u00e9", "n" * 60]


def path(rng):
    return "/".join(rng.choice(NAMES) for _ in range(rng.randint(1, 4)))


def entry(rng, tar, files):
    name = path(rng)
    info = tarfile.TarInfo(name)
    info.mtime = rng.randint(1, 1 << 31)
    info.uid, info.gid = rng.choice([(0, 0), (7, 8), (70000, 3_000_000)])
    kind = rng.choices(["file", "directory", "symlink", "link", "fifo", "whiteout", "opaque"], [8, 6, 2, 2, 1, 2, 1])[0]
    content = b""
    if kind in ("directory", "symlink", "fifo"):
        files.pop(name, None)
    if kind == "file":
        info.mode = rng.choice([0o644, 0o4755, 0o600, 0])
        content = rng.randbytes(rng.choice([0, 1, 511, 512, 513, 5000]))
        files[name] = (info.mode, info.uid, info.gid)
    elif kind == "directory":
        info.type, info.mode = tarfile.DIRTYPE, rng.choice([0o755, 0o700, 0o2711, 0o1777])
    elif kind == "symlink":
        info.type, info.mode = tarfile.SYMTYPE, 0o777
        info.linkname = rng.choice(["", "/", "../"]) + path(rng)
    elif kind == "link":
        if not files:
            return
        info.type, info.linkname = tarfile.LNKTYPE, rng.choice(list(files))
        # As all programs that write links do.
        files[name] = info.mode, info.uid, info.gid = files[info.linkname]
    elif kind == "fifo":
        info.type = tarfile.FIFOTYPE
    else:
        head, _, tail = name.rpartition("/")
        marker = ".wh..wh..opq" if kind == "opaque" else ".wh." + tail
        info.name = (head + "/" if head else "") + marker
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def images(seed, count, out):
    for number in range(count):
        rng = random.Random(seed + number)
        os.makedirs(f"{out}/{number}")
        for layer in range(rng.randint(1, 4)):
            form = rng.choice(["gnu", "pax"])
            with tarfile.open(f"{out}/{number}/{layer}.tar", "w", format=FORMATS[form]) as tar:
                files = {}
                for _ in range(rng.randint(1, 12)):
                    entry(rng, tar, files)


if sys.argv[1] == "tree":
    tree(*sys.argv[2:])
else:
    images(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
