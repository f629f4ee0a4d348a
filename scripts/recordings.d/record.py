"""Types the commands of stdin into a shell in a terminal, and writes what the terminal showed as an SVG
that needs no script: record.py DIRECTORY FILE TITLE COLUMNS ROWS"""

import fcntl
import html
import os
import pty
import select
import struct
import sys
import termios
import time

import pyte

PROMPT = "$ "
# Seconds: between frames at least, a pause of the recording at most, after the last frame.
FRAME, PAUSE, END = 0.25, 1.2, 5.0
MOST_FRAMES, MOST_BYTES = 70, 200_000
# Width and height of a character, in pixels.
WIDE, HIGH = 8.4, 18
COLOURS = {"red": "r", "green": "g", "brown": "y", "cyan": "c"}


def record(directory, commands, columns, rows):
    """Returns the times and contents of the screen at which it changed."""
    screen = pyte.Screen(columns, rows)
    # The alternate screen, which pyte does not have: what was there before comes back.
    stream, before, frames = pyte.ByteStream(screen), None, []
    process, terminal = pty.fork()
    if process == 0:
        environment = {
            "PATH": f"{directory}/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": directory, "PS1": PROMPT,
            "TERM": "xterm-256color", "LANG": "C.UTF-8", "IMGCTL_ROOT": f"{directory}/store",
        }
        os.chdir(directory)
        os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(patience):
        nonlocal before
        if not select.select([terminal], [], [], patience)[0]:
            return False
        data = os.read(terminal, 65536)
        while data:
            at = min((i for i in (data.find(b"\x1b[?1049h"), data.find(b"\x1b[?1049l")) if i >= 0), default=-1)
            part, data = (data, b"") if at < 0 else (data[:at], data[at:])
            stream.feed(part)
            if data:
                if data.startswith(b"\x1b[?1049h"):
                    before = {y: dict(line) for y, line in screen.buffer.items()}, screen.cursor.y, screen.cursor.x
                    screen.erase_in_display(2)
                elif before:
                    screen.erase_in_display(2)
                    for y, line in before[0].items():
                        for x, cell in line.items():
                            screen.buffer[y][x] = cell
                    screen.cursor.y, screen.cursor.x = before[1], before[2]
                data = data[8:]
        return True

    def shot():
        frames.append((time.monotonic(), rows_of(screen, columns, rows)))

    def until_prompt(limit):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            changed = read(FRAME)
            if changed and (not frames or time.monotonic() - frames[-1][0] >= FRAME):
                shot()
            if not changed and screen.display[screen.cursor.y].rstrip() == PROMPT.strip():
                return shot()
        sys.exit("no prompt came back:\n" + "\n".join(screen.display))

    until_prompt(30)
    for command in commands:
        os.write(terminal, command.encode())
        read(1)
        shot()
        os.write(terminal, b"\n")
        until_prompt(300)
    os.write(terminal, b"exit\n")
    os.waitpid(process, 0)
    return frames


def rows_of(screen, columns, rows):
    """The screen as runs of text with a class: a tuple of (y, x, class, text)."""
    runs = []
    for y in range(rows):
        run = None
        for x in range(columns):
            cell = screen.buffer[y][x]
            kind = COLOURS.get(cell.fg, "") + ("b" if cell.bold else "")
            if run and run[2] == kind:
                run[3] += cell.data
            else:
                run = [y, x, kind, cell.data]
                runs.append(run)
    return tuple((y, x, kind, text.rstrip()) for y, x, kind, text in runs if text.strip())


def paced(frames):
    """Frames that differ, with how long each is shown."""
    kept = []
    for at, content in frames:
        if not kept or kept[-1][1] != content:
            kept.append((at, content))
    step = -(-len(kept) // MOST_FRAMES)
    kept = [frame for place, frame in enumerate(kept) if place % step == 0 or place == len(kept) - 1]
    times = [later[0] - one[0] for one, later in zip(kept, kept[1:])] + [END]
    return [(min(lasts, PAUSE if place < len(times) - 1 else END), content)
            for place, (lasts, (_, content)) in enumerate(zip(times, kept))]


STYLE = """
svg{color-scheme:light dark}
.bg{fill:#fdfdfd;stroke:#c8ccd0}
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#1f2328;white-space:pre}
.r{fill:#b3261e}.g{fill:#1a7f37}.y{fill:#7d5a00}.c{fill:#0b6e8a}.b,.rb,.gb,.yb,.cb{font-weight:bold}.rb{fill:#b3261e}.gb{fill:#1a7f37}.yb{fill:#7d5a00}.cb{fill:#0b6e8a}
@media (prefers-color-scheme:dark){.bg{fill:#14171a;stroke:#3a4046}text{fill:#e6e8ea}.r,.rb{fill:#ff8a80}.g,.gb{fill:#7ddc8f}.y,.yb{fill:#e8c468}.c,.cb{fill:#7cd0e8}}
.f{visibility:hidden}.last{visibility:visible}
"""


def svg(title, shown, columns, rows):
    total = sum(lasts for lasts, _ in shown)
    width, height = columns * WIDE + 24, rows * HIGH + 24
    rules, groups, at = [], [], 0.0
    for place, (lasts, content) in enumerate(shown):
        start, end = 100 * at / total, 100 * (at + lasts) / total
        at += lasts
        # The last frame is what a reader sees who prints, wants no motion, or has no animation.
        after = "100%{visibility:visible}" if place == len(shown) - 1 else f"{end:.3f}%,100%{{visibility:hidden}}"
        rules.append(f"@keyframes k{place}{{0%{{visibility:hidden}}{start:.3f}%{{visibility:visible}}{after}}}"
                     f"#f{place}{{animation:k{place} {total:.2f}s step-end infinite}}")
        lines = {}
        for y, x, kind, text in content:
            lines.setdefault(y, []).append((x, kind, text))
        texts = []
        for y, runs in lines.items():
            spans = "".join(
                f'<tspan x="{12 + x * WIDE:.1f}"' + (f' class="{kind}"' if kind else "") + f">{html.escape(text)}</tspan>"
                for x, kind, text in runs)
            texts.append(f'<text y="{26 + y * HIGH}">{spans}</text>')
        last = " last" if place == len(shown) - 1 else ""
        groups.append(f'<g class="f{last}" id="f{place}">{"".join(texts)}</g>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
            f'height="{height}" role="img" aria-label="{html.escape(title)}"><title>{html.escape(title)}</title>'
            f'<style>{STYLE}@media screen and (prefers-reduced-motion:no-preference){{{"".join(rules)}}}</style>'
            f'<rect class="bg" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1}" rx="8"/>{"".join(groups)}</svg>\n')


def main():
    directory, file, title = sys.argv[1:4]
    columns, rows = int(sys.argv[4]), int(sys.argv[5])
    commands = [line for line in sys.stdin.read().splitlines() if line]
    shown = paced(record(directory, commands, columns, rows))
    text = svg(title, shown, columns, rows)
    if len(text) > MOST_BYTES:
        sys.exit(f"{file} would have {len(text)} bytes")
    with open(file, "w") as out:
        out.write(text)
    print(f"{file}: {len(shown)} frames, {len(text)} bytes")


main()
