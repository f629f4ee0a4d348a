"""What is wrong, for the person at the terminal: a message without a traceback, and what to do next."""

import json
import os
import sys

# What the person called.
PROGRAM = os.environ.get("TESTBED_PROGRAM", "scripts/testbed")


class Failed(Exception):
    """Says what failed; `hint` what to do next."""

    def __init__(self, message, hint=None, kind="failed", code=1):
        super().__init__(message)
        self.hint = hint
        self.kind = kind
        self.code = code

    def show(self, as_json):
        """Writes the error as imgctl's other verbs do (docs/cli.md)."""
        hints = [self.hint] if self.hint else []
        if as_json:
            error = {"kind": self.kind, "message": str(self), "causes": [], "hints": hints}
            text = json.dumps({"error": error})
        else:
            text = "\n".join([f"error: {self}", *(f"hint: {hint}" for hint in hints)])
        print(text, file=sys.stderr)
