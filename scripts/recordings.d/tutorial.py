"""Writes the files that a tutorial shows: tutorial.py PAGE DIRECTORY"""

import pathlib
import re
import sys

page, directory = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
# A paragraph that begins with the file's name, then its content.
FILE = re.compile(r"^`(web/[\w./-]+)`(?:[^`]|`[^`\n]+`)*?\n```\w*\n(.*?)^```$", re.M | re.S)
found = FILE.findall(page.read_text())
if len(found) < 5:
    sys.exit(f"{page} shows only {[name for name, _ in found]}")
for name, text in found:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
