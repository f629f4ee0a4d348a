"""Archives on the edge of the format, and what other readers than Go's take them for.

  readings.py cases OUT               the hand-made ones: OUT/<name>.tar
  readings.py random SEED COUNT OUT   generated and damaged ones: OUT/<number>.tar
  readings.py list FILE               a line of JSON for each archive that FILE names: the entries that Python's
                                      tarfile, GNU tar and libarchive find; null for a reader that refuses it
"""

import ctypes
import hashlib
import io
import json
import os
import random
import re
import subprocess
import sys
import tarfile

BLOCK = 512
END = bytes(2 * BLOCK)
# The largest file that is compared, in bytes.
MOST = 1 << 22
GNU = b"ustar  \0"
USTAR = b"ustar\x0000"
OLD = bytes(8)


def pad(body):
    return body + bytes(-len(body) % BLOCK)


def sealed(block):
    block = bytearray(block)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def header(name, flag=b"0", size=0, link=b"", magic=USTAR, mode=0o644, **fields):
    block = bytearray(BLOCK)
    block[0 : len(name)] = name
    block[100:108] = b"%07o\0" % mode
    block[108:124] = b"0000000\0" * 2
    block[124:136] = b"%011o\0" % size
    block[136:148] = b"%011o\0" % 1_000_000_000
    block[156:157] = flag
    block[157 : 157 + len(link)] = link
    block[257:265] = magic
    for at, value in fields.items():
        at = int(at[1:])
        block[at : at + len(value)] = value
    return sealed(block)


def file(name, content=b"content", **more):
    return header(name, size=len(content), **more) + pad(content)


def record(key, value):
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(b"%d" % length) + len(rest) != length:
        length += 1
    return b"%d" % length + rest


def pax(*records, flag=b"x"):
    body = b"".join(record(key, value) for key, value in records)
    return header(b"PaxHeaders/x", flag, len(body)) + pad(body)


def long(flag, name):
    return header(b"././@LongLink", flag, len(name) + 1, magic=GNU) + pad(name + b"\0")


def octal(number):
    return b"%011o\0" % number


def gnu_sparse(name, pairs, size, content):
    fields = {f"_{386 + 24 * n}": octal(at) + octal(length) for n, (at, length) in enumerate(pairs)}
    return header(name, b"S", len(content), magic=GNU, _483=octal(size), **fields) + pad(content)


def sparse_1_0(name, text, size, content, *more):
    records = [(b"major", b"1"), (b"minor", b"0"), (b"name", name), (b"realsize", size)]
    records = [(b"GNU.sparse." + key, value) for key, value in records]
    return pax(*records, *more) + file(b"GNUSparseFile.0/h", pad(text) + content)


def sparse_0_1(name, text, count, size, content, *more):
    records = [(b"size", size), (b"numblocks", count), (b"name", name), (b"map", text)]
    return pax(*((b"GNU.sparse." + key, value) for key, value in records), *more) + file(b"h", content)


ACL = b"SCHILY.xattr.system.posix_acl_"


def acl(owner, group, other, mask=None):
    entries = [(1, owner), (4, group)] + ([(16, mask)] if mask is not None else []) + [(32, other)]
    part = lambda tag, permissions: bytes([tag, 0, permissions, 0]) + b"\xff" * 4
    return b"\2\0\0\0" + b"".join(part(*entry) for entry in entries)


INNER = file(b"inner", b"")
NEXT = file(b"next", b"next")


def cases():
    directory = header(b"d/", b"5", mode=0o755)
    bodies = {
        "file": file(b"a"),
        "long-name": long(b"L", b"n" * 150) + file(b"n"),
        "long-link": long(b"K", b"t" * 150) + header(b"l", b"2", link=b"t"),
        "pax-path": pax((b"path", b"p" * 150)) + file(b"p"),
        "pax-linkpath": pax((b"linkpath", b"p" * 150)) + header(b"l", b"2", link=b"p"),
        "long-and-pax-path": long(b"L", b"go") + pax((b"path", b"img")) + file(b"h"),
        "pax-path-and-long": pax((b"path", b"img")) + long(b"L", b"go") + file(b"h"),
        "long-and-pax-other": long(b"L", b"go") + pax((b"comment", b"x")) + file(b"h"),
        "long-and-pax-size": pax((b"size", b"3")) + long(b"L", b"go") + header(b"h") + pad(b"abc"),
        "long-link-and-linkpath": long(b"K", b"/go") + pax((b"linkpath", b"/img")) + header(b"l", b"2", link=b"/h"),
        "long-empty": long(b"L", b"") + file(b"f"),
        "long-twice": long(b"L", b"a") + long(b"L", b"b") + file(b"f"),
        "prefix": file(b"f", _345=b"usr/bin"),
        "prefix-gnu": file(b"f", magic=GNU, _345=b"usr/bin"),
        "prefix-gnu-time": file(b"f", magic=GNU, _345=octal(1)),
        "prefix-old": file(b"f", magic=OLD, _345=b"usr/bin"),
        "prefix-no-version": file(b"f", magic=b"ustar\0\0\0", _345=b"usr/bin"),
        "prefix-odd-magic": file(b"f", magic=b"ustarxxx", _345=b"usr/bin"),
        "prefix-star": file(b"f", _345=b"p", _476=b"00000000000 00000000000 ", _508=b"tar\0"),
        "prefix-star-full": file(b"f", _345=b"p" * 131, _476=b"00000000000 00000000000 ", _508=b"tar\0"),
        "prefix-only": header(b"", b"\0", _345=b"usr") + NEXT,
        "old-slash": header(b"d/", b"\0", 0, magic=OLD) + NEXT,
        "nul-slash-size": header(b"d/", b"\0", 512) + INNER + NEXT,
        "file-slash": header(b"d/", b"0", 0) + NEXT,
        "file-slash-size": header(b"d/", b"0", 512) + INNER + NEXT,
        "nul-long-slash": long(b"L", b"d/") + header(b"d", b"\0") + NEXT,
        "nul-pax-slash": pax((b"path", b"d/")) + header(b"d", b"\0") + NEXT,
        "nul-pax-no-slash": pax((b"path", b"d")) + header(b"d/", b"\0") + NEXT,
        "link-slash": header(b"l/", b"2", link=b"x") + NEXT,
        "device-old": header(b"c", b"3", magic=OLD, _329=b"0000001\x000000003\0") + NEXT,
        "device": header(b"c", b"3", _329=b"0000001\x000000003\0") + NEXT,
        "pax-size-bigger": pax((b"size", b"512")) + header(b"f") + INNER + NEXT,
        "pax-size-smaller": pax((b"size", b"0")) + header(b"f", size=512) + INNER + NEXT,
        "pax-size-plus": pax((b"size", b"+512")) + header(b"f") + INNER + NEXT,
        "pax-size-blank": pax((b"size", b" 512")) + header(b"f") + INNER + NEXT,
        "pax-size-zeros": pax((b"size", b"0000512")) + header(b"f") + INNER + NEXT,
        "pax-size-empty": pax((b"size", b"")) + file(b"f", b"x" * 512),
        "pax-size-twice": pax((b"size", b"512"), (b"size", b"0")) + header(b"f") + INNER + NEXT,
        "pax-path-empty": pax((b"path", b"")) + file(b"h"),
        "pax-path-twice": pax((b"path", b"a"), (b"path", b"b")) + file(b"h"),
        "pax-path-nul": pax((b"path", b"a\0b")) + file(b"h"),
        "pax-twice": pax((b"path", b"a")) + pax((b"mtime", b"1")) + file(b"h"),
        "pax-empty": header(b"x", b"x") + file(b"h"),
        "pax-long-record": pax((b"comment", b"x" * 1_000_000), (b"path", b"p")) + file(b"h"),
        "pax-leading-zero": header(b"x", b"x", 11) + pad(b"011 path=p\n") + file(b"h"),
        "pax-binary": pax((b"path", b"\xff\xfe")) + file(b"h"),
        "pax-charset": pax((b"hdrcharset", b"BINARY"), (b"path", b"\xff\xfe")) + file(b"h"),
        "pax-charset-odd": pax((b"hdrcharset", b"UTF-16"), (b"path", b"\xff\xfe")) + file(b"h"),
        "pax-newline": pax((b"path", b"a\nb")) + file(b"h"),
        "pax-realsize": pax((b"SCHILY.realsize", b"9999")) + file(b"f") + NEXT,
        "pax-holes": pax((b"SUN.holesdata", b" 0 3")) + file(b"f") + NEXT,
        "pax-devices": pax((b"SCHILY.devmajor", b"9")) + header(b"c", b"3", _329=b"0000001\x000000003\0"),
        "pax-xattr": pax((b"SCHILY.xattr.user.a", b"b\0c\n")) + file(b"f"),
        "global-comment": pax((b"comment", b"x"), flag=b"g") + file(b"a"),
        "global-mtime": pax((b"mtime", b"5"), flag=b"g") + file(b"a"),
        "global-path": pax((b"path", b"x"), flag=b"g") + file(b"a"),
        "global-between": pax((b"path", b"x")) + pax((b"comment", b"x"), flag=b"g") + file(b"a"),
        "base-256": file(b"f", b"", _124=b"\x80" + bytes(9) + b"\x02\0")[:BLOCK] + INNER + NEXT,
        "base-256-negative": file(b"f", b"", _124=b"\xff" * 10 + b"\xfe\0")[:BLOCK] + INNER + NEXT,
        "base-256-large": file(b"f", b"", _124=b"\x80" + b"\xff" * 11)[:BLOCK] + INNER + NEXT,
        "base-256-odd": file(b"f", b"", _124=b"\x81" + bytes(9) + b"\x02\0")[:BLOCK] + INNER + NEXT,
        "size-blanks": header(b"f", _124=b"       1000 ") + INNER + NEXT,
        "size-junk": header(b"f", _124=b"1000\0junkjun") + INNER + NEXT,
        "size-nul-first": header(b"f", _124=b"\0001000       ") + INNER + NEXT,
        "size-none": header(b"f", _124=bytes(12)) + NEXT,
        "size-python": header(b"f", _124=b"0o1000\0\0\0\0\0\0") + INNER + NEXT,
        "size-underscore": header(b"f", _124=b"1_000\0\0\0\0\0\0\0") + INNER + NEXT,
        "checksum-base-256": (lambda h: h[:148] + b"\x80\0\0\0" + sum(sealed(h)[:148] + b" " * 8 + h[156:]).to_bytes(4, "big") + h[156:])(
            header(b"f")
        )
        + NEXT,
        "sparse-gnu": gnu_sparse(b"s", [(1, 2), (5, 1)], 7, b"abc") + NEXT,
        "sparse-gnu-ustar": header(b"s", b"S", 0, _386=octal(0) * 2, _483=octal(0)) + NEXT,
        "sparse-gnu-gap": header(b"s", b"S", 2, magic=GNU, _386=octal(0) + octal(1), _434=octal(3) + octal(1), _483=octal(5)) + pad(b"ab") + NEXT,
        "sparse-gnu-no-length": header(b"s", b"S", 1, magic=GNU, _386=octal(0) + octal(1) + octal(3), _483=octal(5)) + pad(b"a") + NEXT,
        "sparse-gnu-ends-early": header(b"s", b"S", 0, magic=GNU, _482=b"\1", _483=octal(5)) + bytes(BLOCK) + NEXT,
        "sparse-gnu-times": header(b"s", b"S", 1, magic=GNU, _345=b"not-a-time", _386=octal(0) + octal(1), _483=octal(1)) + pad(b"a") + NEXT,
        "sparse-1.0": sparse_1_0(b"s", b"1\n1\n2\n", b"3", b"ab") + NEXT,
        "sparse-1.0-path": sparse_1_0(b"s", b"1\n1\n2\n", b"3", b"ab", (b"path", b"p")) + NEXT,
        "sparse-1.0-size": sparse_1_0(b"s", b"1\n1\n2\n", b"3", b"ab", (b"size", b"514")) + NEXT,
        "sparse-0.1": sparse_0_1(b"s", b"1,1", b"1", b"3", b"a") + NEXT,
        "sparse-0.1-no-count": pax((b"GNU.sparse.map", b"1,1"), (b"GNU.sparse.size", b"3")) + file(b"s", b"a") + NEXT,
        "sparse-0.1-nested": sparse_0_1(b"s", b"1,1", b"1", b"3", b"a", (b"comment", b"\n25 GNU.sparse.offset=0\n")) + NEXT,
        "sparse-0.0": pax(
            (b"GNU.sparse.size", b"3"), (b"GNU.sparse.numblocks", b"1"), (b"GNU.sparse.offset", b"1"), (b"GNU.sparse.numbytes", b"1")
        )
        + file(b"s", b"a")
        + NEXT,
        "sparse-name-only": pax((b"GNU.sparse.name", b"img")) + file(b"h") + NEXT,
        "sparse-version": pax((b"GNU.sparse.major", b"01"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", b"s"), (b"GNU.sparse.realsize", b"0"))
        + file(b"h", pad(b"0\n"))
        + NEXT,
        "duplicates": file(b"a", b"1") + file(b"a", b"2"),
        "file-over-directory": directory + file(b"d/x") + file(b"d"),
        "dots": file(b"./a//b/./c"),
        "absolute": file(b"/abs"),
        "backslash": file(b"a\\b"),
        "checksum-signed": file(b"\xff\xfe"),
        "hard-link": file(b"a") + header(b"h", b"1", link=b"a"),
        "hard-link-mode": file(b"a") + header(b"h", b"1", link=b"a", mode=0o4755),
        "hard-link-to-itself-mode": file(b"a") + header(b"a", b"1", link=b"a", mode=0o600),
        "hard-link-to-symlink": header(b"s", b"2", link=b"x", mode=0o777) + header(b"h", b"1", link=b"s"),
        "hard-link-owner": file(b"a") + header(b"h", b"1", link=b"a", _108=b"0000007\0"),
        "hard-link-time": file(b"a") + header(b"h", b"1", link=b"a", _136=octal(7)),
        "hard-link-xattr": file(b"a") + pax((b"SCHILY.xattr.user.a", b"1")) + header(b"h", b"1", link=b"a"),
        "hard-link-same-xattr": (lambda x: x + file(b"a") + x + header(b"h", b"1", link=b"a"))(pax((b"SCHILY.xattr.user.a", b"1"))),
        "hard-link-no-xattr": pax((b"SCHILY.xattr.user.a", b"1")) + file(b"a") + header(b"h", b"1", link=b"a"),
        "acl": pax((ACL + b"access", acl(6, 4, 4))) + file(b"a"),
        "acl-mode": pax((ACL + b"access", acl(7, 7, 7))) + file(b"a"),
        "acl-mask": pax((ACL + b"access", acl(6, 4, 4, 6))) + file(b"a"),
        "acl-same-mask": pax((ACL + b"access", acl(6, 7, 4, 4))) + file(b"a"),
        "acl-cut": pax((ACL + b"access", acl(6, 4, 4)[:-1])) + file(b"a"),
        "acl-default": pax((ACL + b"default", acl(7, 0, 0))) + directory,
        "acl-default-of-file": pax((ACL + b"default", acl(6, 4, 4))) + file(b"a"),
        "fifo": header(b"p", b"6"),
        "one-zero-block": file(b"a") + bytes(BLOCK) + file(b"b"),
    }
    for flag, what in zip(b"123456", ["hard-link", "symlink", "character", "block", "directory", "fifo"]):
        target = b"a" if flag in b"12" else b""
        bodies[f"size-of-{what}"] = file(b"a") + header(b"odd", bytes([flag]), 512, target) + INNER + NEXT
        bodies[f"pax-size-of-{what}"] = file(b"a") + pax((b"size", b"512")) + header(b"odd", bytes([flag]), 0, target) + INNER + NEXT
    for flag in b"7ADEMNVXZ":
        bodies[f"type-{chr(flag)}"] = file(b"odd", b"c" * 512, flag=bytes([flag])) + NEXT
    whole = {name: body + END for name, body in bodies.items()}
    ended = file(b"a") + file(b"b", b"x" * 600)
    whole |= {
        "end-none": ended,
        "end-one": ended + bytes(BLOCK),
        "end-many": ended + bytes(20 * BLOCK),
        "end-no-padding": ended[: -(-600 % BLOCK)],
        "end-cut": ended[:-500],
        "end-in-header": ended + file(b"c")[:300],
        "behind-archive": ended + END + file(b"c") + END,
        "behind-junk": ended + END + b"junk",
        "nothing": END,
    }
    return whole


NAMES = [b"a", b"b", b"d/", b"d/e", b"./a", b"/b", b"a//b", b"f" * 99, b"\xff\xfe", b"d", b"\xc3\xa9", b"a b", b"x/", b"n" * 100]
MAGICS = [USTAR, USTAR, USTAR, GNU, GNU, OLD, b"ustar\0\0\0", b"ustar 00", b"ustarxxx"]
FLAGS = b"00000000000155522223467\0\0\0SVDMNXAZK"
SIZES = [0, 0, 1, 3, 511, 512, 513, 1024, 1500]
NUMBERS = [b"", b"0", b"1", b"3", b"512", b"0512", b"-1", b"1024", b"9223372036854775807", b"18446744073709551616"]
KEYS = b"path linkpath size uid gid mtime comment hdrcharset uname SCHILY.xattr.user.x SCHILY.realsize SCHILY.devminor".split()
KEYS += [b"GNU.sparse." + key for key in b"name major minor realsize size numblocks map offset numbytes".split()]
FIELDS = [(0, 100), (100, 8), (108, 8), (124, 12), (124, 12), (136, 12), (156, 1), (156, 1), (157, 100), (257, 8), (329, 8), (345, 155), (345, 12), (357, 12), (386, 96), (482, 1), (483, 12), (508, 4)]


def value(rng, key):
    if key in (b"path", b"linkpath", b"GNU.sparse.name"):
        return rng.choice(NAMES + [b"p" * 160, b"", b"a\0b"])
    if key == b"hdrcharset":
        return rng.choice([b"BINARY", b"ISO-IR 10646 2000 UTF-8", b"latin"])
    if key == b"GNU.sparse.map":
        return rng.choice([b"0,1", b"1,1,4,2", b"", b"0,512", b"3,0"])
    found = rng.choice(NUMBERS) if rng.random() < 0.9 else b"x y\n"
    # Go takes an attribute without a value for none.
    return found or b"0" if key.startswith(b"SCHILY.xattr.") else found


def entry(rng):
    """An entry that is well-formed except for what its parts say together."""
    out = b""
    for _ in range(rng.choice([0, 0, 0, 0, 1, 1, 2])):
        kind = rng.random()
        if kind < 0.25:
            out += long(rng.choice([b"L", b"L", b"K"]), rng.choice(NAMES + [b"l" * 160, b""]))
        elif kind < 0.35:
            out += pax((b"comment", b"c"), flag=b"g")
        else:
            keys = rng.sample(KEYS if rng.random() < 0.3 else KEYS[:10], rng.choice([0, 1, 1, 1, 2, 3]))
            out += pax(*((key, value(rng, key)) for key in keys))
    kind = rng.random()
    if kind < 0.06:
        parts = sorted(rng.sample(range(40), 2 * rng.randint(0, 4)))
        pairs = [(at, end - at) for at, end in zip(parts[::2], parts[1::2])]
        return out + gnu_sparse(rng.choice(NAMES), pairs, rng.choice([40, 50]), b"s" * sum(length for _, length in pairs))
    if kind < 0.12:
        text, content = rng.choice([(b"1\n1\n2\n", b"ab"), (b"0\n", b""), (b"2\n0\n1\n5\n1\n", b"ab"), (b"1\n9\n", b"")])
        return out + sparse_1_0(rng.choice(NAMES), text, rng.choice([b"3", b"9", b"0"]), content)
    if kind < 0.16:
        return out + sparse_0_1(rng.choice(NAMES), rng.choice([b"1,1", b"0,1", b"5,1"]), b"1", b"9", b"a")
    odd = rng.random() < 0.15
    flag = bytes([rng.choice(FLAGS if odd else b"0000055226\0")])
    is_file = flag in (b"0", b"\0")
    content = rng.randbytes(rng.choice(SIZES)) if is_file or odd else b""
    link = rng.choice(NAMES) if flag in (b"1", b"2") else b""
    magic, fields = rng.choice(MAGICS if odd else [USTAR, USTAR, GNU, OLD]), {}
    if rng.random() < 0.15 and (odd or magic == USTAR):
        fields["_345"] = rng.choice([b"usr/bin", octal(7), b"p" * 131, b"p" * 155])
    name = rng.choice(NAMES)
    name = name if odd or not is_file else name.rstrip(b"/")
    mode = rng.choice([0o644, 0o644, 0o644, 0o755, 0o4755])
    if flag == b"1":
        # Most links have the file that they are a link to.
        link = name.rstrip(b"/") + b".file"
        out += file(link, magic=magic, mode=rng.choice([mode, 0o644]))
    return out + header(name, flag, len(content), link, magic, mode=mode, **fields) + pad(content)


def damaged(rng, tar):
    """Changes a field, or moves blocks, and mends checksums."""
    tar = bytearray(tar)
    for _ in range(rng.choice([1, 1, 2])):
        if not tar:
            break
        at = rng.randrange(len(tar) // BLOCK) * BLOCK
        kind = rng.random()
        if kind < 0.1:
            tar[at:at] = tar[at : at + BLOCK]
        elif kind < 0.2:
            del tar[at : at + BLOCK]
        elif kind < 0.3 or tar[at + 148 : at + 156] == bytes(8):
            tar[at + rng.randrange(BLOCK)] = rng.randrange(256)
        else:
            place, length = rng.choice(FIELDS)
            values = [bytes(length), b" " * length, rng.randbytes(length), b"\x80" + bytes(max(0, length - 2)) + b"\1", octal(rng.choice(SIZES)), b"1\0" + b"7" * length]
            values += [bytes([rng.choice(FLAGS)]), rng.choice(MAGICS), rng.choice(NAMES), b" 1" + b" " * length, b"tar\0"]
            new = rng.choice(values)[:length]
            tar[at + place : at + place + len(new)] = new
            tar[at : at + BLOCK] = sealed(tar[at : at + BLOCK])
    return bytes(tar)


def generated(rng):
    body = b"".join(entry(rng) for _ in range(rng.randint(1, 3)))
    if rng.random() < 0.4:
        body = damaged(rng, body)
    return body + END


# The readers. Each returns a list of [name, kind, size, content or target], or None if it refuses.


def clean(name):
    parts = []
    for part in name.split(b"/"):
        if part == b"..":
            parts = parts[:-1]
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/".join(parts)


def described(name, kind, size=0, content=b""):
    return [clean(name).hex(), kind, size, (clean(content) if kind == "h" else content).hex()]


def by_python(path):
    found, files = [], {}
    raw = lambda text: text.encode("utf-8", "surrogateescape")
    try:
        with tarfile.open(path, "r:") as tar:
            for info in tar:
                name = raw(info.name)
                # What extract() leaves of a file: it sets mode and owner of each name, also of links.
                key = clean(name)
                files[key] = files.get(clean(raw(info.linkname)), [None] * 3) if info.islnk() else [None] * 3
                if not info.issym() and files[key] != ["l"]:
                    files[key][:] = [info.mode & 0o7777, info.uid, info.gid]
                else:
                    files[key] = ["l"]
                if info.islnk() or info.issym():
                    found.append(described(name, "h" if info.islnk() else "l", 0, raw(info.linkname)))
                elif info.isdir() or info.isfifo():
                    found.append(described(name, "d" if info.isdir() else "p"))
                elif info.isdev():
                    numbers = b"%d,%d" % (info.devmajor, info.devminor)
                    found.append(described(name, "c" if info.ischr() else "b", 0, numbers))
                elif info.size > MOST:
                    return None
                else:
                    content = tar.extractfile(info).read()
                    found.append(described(name, "f", info.size, hashlib.sha256(content).digest()))
    except (tarfile.TarError, ValueError, OverflowError, MemoryError, OSError, TypeError, AttributeError):
        return None
    attributes = {name.hex(): of for name, of in files.items() if len(of) == 3}
    return {"entries": found, "attributes": attributes}


LINE = re.compile(rb"(.)[-rwxsStT]{9}[.+]? +[^ /]+/[^ ]+ +([0-9]+|[0-9]+,[0-9]+) +(?:-?[0-9]+-[0-9]+-[0-9]+ [0-9:.]+|-?[0-9]+) (.*)", re.S)


def by_gnu(path):
    """GNU tar has no output for single contents, only for all together, and without holes at the end."""
    flags = ["--quoting-style=escape", "--numeric-owner", "--full-time", "--warning=no-timestamp"]
    environment = dict(os.environ, LC_ALL="C", TZ="UTC")
    run = lambda *arguments: subprocess.run(["tar", *arguments, "-f", path], capture_output=True, env=environment)
    listed = run("-tv", *flags)
    content = run("-xO")
    if listed.returncode or content.returncode:
        return None
    escape = lambda match: match[1] if match[1] == b"\\" else {b"n": b"\n", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"r": b"\r", b"v": b"\v"}.get(match[1]) or bytes([int(match[1], 8)])
    plain = lambda text: re.sub(rb"\\(\\|[0-7]{3}|.)", escape, text, flags=re.S)
    found = []
    for line in listed.stdout.splitlines():
        match = LINE.fullmatch(line)
        if not match:
            found.append([line.hex(), "?", 0, ""])
            continue
        kind, size, name = match[1].decode(), match[2], match[3]
        target = b""
        for mark, of in ((b" -> ", "l"), (b" link to ", "h")):
            if kind == of and mark in name:
                name, target = name.split(mark, 1)
        kind = {"-": "f"}.get(kind, kind)
        if kind in "cb":
            target = size
        found.append(described(plain(name), kind, int(size) if kind == "f" else 0, plain(target)))
    with open(path, "rb") as archive:
        bytes_ = archive.read()
    has_sparse = b"GNU.sparse." in bytes_ or b"S" in bytes_[156::BLOCK]
    return {"entries": found, "contents": None if has_sparse else hashlib.sha256(content.stdout).hexdigest()}


KINDS = {0o100000: "f", 0o040000: "d", 0o120000: "l", 0o020000: "c", 0o060000: "b", 0o010000: "p"}


def libarchive():
    library = ctypes.CDLL("libarchive.so.13")
    for name in ("read_new", "entry_pathname", "entry_hardlink", "entry_symlink"):
        getattr(library, "archive_" + name).restype = ctypes.c_char_p if "entry" in name else ctypes.c_void_p
    for name in ("entry_size", "read_data"):
        getattr(library, "archive_" + name).restype = ctypes.c_ssize_t
    return library


def by_libarchive(library, path):
    call = lambda name, *arguments: getattr(library, "archive_" + name)(*arguments)
    archive = ctypes.c_void_p(call("read_new"))
    call("read_support_format_tar", archive)
    found = []
    try:
        if call("read_open_filename", archive, path.encode(), ctypes.c_size_t(10240)) != 0:
            return found if os.path.getsize(path) == 0 else None
        entry, buffer = ctypes.c_void_p(), ctypes.create_string_buffer(1 << 20)
        while (code := call("read_next_header", archive, ctypes.byref(entry))) != 1:
            if code <= -25:
                return None
            name = call("entry_pathname", entry)
            if name is None:
                return None
            link, target = call("entry_hardlink", entry), call("entry_symlink", entry)
            kind = KINDS.get(call("entry_filetype", entry), "?")
            if link is not None:
                found.append(described(name, "h", 0, link))
            elif kind == "l":
                found.append(described(name, "l", 0, target or b""))
            elif kind in "cb":
                numbers = b"%d,%d" % (call("entry_rdevmajor", entry), call("entry_rdevminor", entry))
                found.append(described(name, kind, 0, numbers))
            elif kind == "f":
                sum_, size = hashlib.sha256(), 0
                while (count := call("read_data", archive, buffer, ctypes.c_size_t(len(buffer)))) != 0:
                    if count < 0 or size > MOST:
                        return None
                    size += count
                    sum_.update(buffer.raw[:count])
                # What is missing at the end is a hole.
                whole = call("entry_size", entry)
                if not size <= whole <= MOST:
                    kind = "?"
                sum_.update(bytes(max(0, min(whole, MOST) - size)))
                size = whole
                found.append(described(name, kind, size, sum_.digest()))
            else:
                found.append(described(name, kind))
        return found
    finally:
        call("read_free", archive)


def listed(names):
    library = libarchive()
    for path in names:
        found = {"python": by_python(path), "gnu": by_gnu(path), "libarchive": by_libarchive(library, path)}
        print(json.dumps(found), flush=True)


def main():
    verb, *rest = sys.argv[1:]
    if verb == "list":
        with open(rest[0], encoding="utf-8") as names:
            return listed(names.read().splitlines())
    if verb == "cases":
        archives = cases()
    else:
        seed, count = int(rest.pop(0)), int(rest.pop(0))
        archives = {f"{number:05}": generated(random.Random(seed + number)) for number in range(count)}
    for name, archive in archives.items():
        with open(f"{rest[0]}/{name}.tar", "wb") as out:
            out.write(archive)


main()
