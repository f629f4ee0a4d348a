# shellcheck shell=bash
# Entries whose name is empty: a directory, a file, a symlink.
python3 - <<'PYTHON'
import io, tarfile
with tarfile.open("a.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
    for name, kind, content in [
        ("first", tarfile.REGTYPE, b"1\n"),
        ("", tarfile.REGTYPE, b"nothing\n"),
        ("", tarfile.SYMTYPE, b""),
        ("last", tarfile.REGTYPE, b"2\n"),
    ]:
        info = tarfile.TarInfo(name)
        info.type, info.size, info.linkname = kind, len(content), "/etc" if kind == tarfile.SYMTYPE else ""
        tar.addfile(info, io.BytesIO(content))
PYTHON
