#!/usr/bin/env python3
"""Preprocessor of mdBook: links that leave docs/ become links to the repository, and those to a
README.md lead to the index.html that mdBook makes of it."""

import json
import posixpath
import re
import sys

LINK = re.compile(r"\]\(([^)\s]+)\)")


def rewritten(text, page, address):
    def link(match):
        target, mark, anchor = match[1].partition("#")
        if ":" in target or not target:
            return match[0]
        inside = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        if inside.startswith("docs/"):
            folder, name = posixpath.split(target)
            return match[0] if name != "README.md" else f"]({posixpath.join(folder, 'index.md')}{mark}{anchor})"
        return f"]({address}{inside}{mark}{anchor})"

    lines, code = [], False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            code = not code
        lines.append(line if code else LINK.sub(link, line))
    return "\n".join(lines)


def visit(items, address):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter and chapter["path"]:
            # The page of a folder is called index.md by now, and lies where README.md lay.
            chapter["content"] = rewritten(chapter["content"], chapter["path"], address)
            visit(chapter["sub_items"], address)


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    context, book = json.load(sys.stdin)
    settings = context["config"]["preprocessor"]["repository"]
    visit(book["items"] if "items" in book else book["sections"], settings["address"])
    json.dump(book, sys.stdout)


main()
