"""Makes an input that fails a test small: minimise.py INPUT RESULT -- COMMAND..., where {} is the input's path."""

import os
import subprocess
import sys
import tempfile
import time

# Parts of this size, and half of it, and so on, are left out in turn.
LARGEST_PART = 1 << 16
SECONDS = 300


def main():
    source, result, dashes, *command = sys.argv[1:]
    assert dashes == "--", sys.argv
    end = time.monotonic() + SECONDS
    with open(source, "rb") as file:
        content = file.read()
    with tempfile.TemporaryDirectory() as folder:
        trial = os.path.join(folder, "input")

        def fails(candidate):
            with open(trial, "wb") as file:
                file.write(candidate)
            done = subprocess.run([word.replace("{}", trial) for word in command],
                                  stdin=subprocess.DEVNULL, capture_output=True, check=False)
            return done.returncode != 0

        size = min(len(content), LARGEST_PART)
        while size and time.monotonic() < end:
            start = 0
            while start < len(content) and time.monotonic() < end:
                shorter = content[:start] + content[start + size:]
                if fails(shorter):
                    content = shorter
                else:
                    start += size
            size //= 2
    with open(result, "wb") as file:
        file.write(content)


main()
