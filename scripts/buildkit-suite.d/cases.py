"""Takes the builds out of BuildKit's tests: what a function writes into a directory, and how it solves it.

Only what is written as literals is taken: variables that hold strings, `[]byte`, `UnixOrWindows`, `Sprintf` with
literal arguments, files of `fstest`, attributes of the frontend. A function whose builds depend on more (a
server, a session, the client's interface) has no case, and says why.
"""
import dataclasses
import pathlib
import re

TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      |(?P<raw>`[^`]*`)
      |(?P<string>"(?:\\.|[^"\\\n])*")
      |(?P<rune>'(?:\\.|[^'\\])+')
      |(?P<number>0[xob]?[0-9a-fA-F_]+|[0-9]+)
      |(?P<name>[A-Za-z_]\w*)
      |(?P<sign>:=|==|!=|\.\.\.|&&|\|\||[-+*/%<>=!&|^.,;:(){}\[\]~])""",
    re.X | re.S,
)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
# A build that needs one of these is no file and a command line.
OUTSIDE = [
    (r"httpserver\.|httptest\.|NewTestServer", "a server for HTTP or git"),
    (r"\bgateway\.|c\.Build\(|frontend, opt|gwclient", "the client's interface"),
    (r"sb\.NewRegistry|registry\.", "a registry that the test fills"),
    (r"Session:", "a session: secrets, agents, files"),
    (r"llb\.", "LLB"),
    (r"CacheExports|CacheImports", "caches outside the daemon"),
]


# What changes files that a test has written.
CHANGES = ["Rename", "WriteFile", "Remove", "RemoveAll", "Mkdir", "MkdirAll", "Chmod", "Symlink", "Create"]


class Unknown(Exception):
    """The value is not in the text."""


@dataclasses.dataclass
class Case:
    function: str
    file: str
    number: int
    files: list  # (kind, path, content, mode)
    attributes: dict
    # True, False, or None where the test does not say.
    succeeds: bool | None = None
    # Findings (rule, line) of a test of the checks.
    findings: list | None = None

    @property
    def name(self):
        return f"{self.function}/{self.number}"


def tokens(text):
    found, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match:
            at += 1
            continue
        at = match.end()
        kind = match.lastgroup
        if kind != "space":
            found.append((kind, match.group()))
    return found


def unquoted(text):
    def one(match):
        code = match.group(1)
        if code[0] in "xuU":
            return chr(int(code[1:], 16))
        if code[0].isdigit():
            return chr(int(code, 8))
        return ESCAPES[code]

    return re.sub(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", one, text[1:-1])


class Reader:
    """Reads the body of one function from left to right."""

    def __init__(self, function, file, body):
        self.function, self.file = function, file
        self.tokens = tokens(body)
        self.at = 0
        self.values, self.directories = {}, {}
        self.cases = []
        self.skipped = set()

    def text(self, ahead=0):
        index = self.at + ahead
        return self.tokens[index][1] if index < len(self.tokens) else ""

    def kind(self, ahead=0):
        index = self.at + ahead
        return self.tokens[index][0] if index < len(self.tokens) else ""

    def accept(self, *words):
        if all(self.text(i) == word for i, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def expect(self, *words):
        if not self.accept(*words):
            raise Unknown(f"{words} at {self.text()}")

    def skip_group(self):
        """Passes a bracket and what is in it."""
        depth = 0
        while self.at < len(self.tokens):
            if self.text() in "([{":
                depth += 1
            elif self.text() in ")]}":
                depth -= 1
            self.at += 1
            if depth == 0:
                return

    def value(self):
        parts = [self.operand()]
        while self.accept("+"):
            parts.append(self.operand())
        return parts[0] if len(parts) == 1 else "".join(map(str, parts))

    def operand(self):
        kind, text = self.kind(), self.text()
        if kind == "raw":
            self.at += 1
            return text[1:-1].replace("\r", "")
        if kind == "string":
            self.at += 1
            return unquoted(text)
        if kind == "number":
            self.at += 1
            return int(text.replace("0o", "0"), 8) if re.fullmatch(r"0o?[0-7]+", text) else int(text, 0)
        if self.accept("[", "]", "byte", "("):
            value = self.value()
            self.expect(")")
            return value
        if self.accept("integration", ".", "UnixOrWindows", "("):
            values = self.arguments()
            return values[0]
        if self.accept("fmt", ".", "Sprintf", "("):
            form, *rest = self.arguments()
            if re.search(r"%(?![sdqv%])", form):
                raise Unknown(form)
            try:
                return re.sub(r"%q", '"%s"', form).replace("%v", "%s") % tuple(rest)
            except TypeError as error:
                raise Unknown(str(error)) from error
        if kind == "name" and text in ("true", "false"):
            self.at += 1
            return text
        if kind == "name" and text == "nil":
            self.at += 1
            return None
        if kind == "name" and self.text(1) not in (".", "(", "["):
            self.at += 1
            if text not in self.values:
                raise Unknown(text)
            return self.values[text]
        raise Unknown(text)

    def arguments(self):
        """The values up to the closing bracket, which may follow a comma."""
        found = []
        while not self.accept(")"):
            found.append(self.value())
            if not self.accept(","):
                self.expect(")")
                break
        return found

    def appliers(self):
        files = []
        while not self.accept(")"):
            if not self.accept("fstest", "."):
                raise Unknown(self.text())
            sort = self.text()
            self.at += 1
            self.expect("(")
            arguments = self.arguments()
            if sort == "CreateFile":
                path, content, mode = arguments
                files.append(("file", path, content or "", mode))
            elif sort == "CreateDir":
                files.append(("directory", arguments[0], "", arguments[1]))
            elif sort == "Symlink":
                files.append(("link", arguments[1], arguments[0], 0o777))
            else:
                raise Unknown(sort)
            self.accept(",")
        return files

    def table(self):
        """`map[string]string{…}` with literal members."""
        self.expect("map", "[", "string", "]", "string", "{")
        found = {}
        while not self.accept("}"):
            name = self.value()
            self.expect(":")
            found[name] = self.value()
            self.accept(",")
        return found

    def structure(self, wanted):
        """The members of a literal `{Name: …}`; those that nobody wants are passed."""
        self.expect("{")
        found = {}
        while not self.accept("}"):
            name = self.text()
            self.at += 1
            self.expect(":")
            if name in wanted:
                found[name] = wanted[name]()
            else:
                found[name] = None
                while self.text() not in (",", "}"):
                    if self.text() in "([{":
                        self.skip_group()
                    else:
                        self.at += 1
            self.accept(",")
        return found

    def mounts(self):
        """`map[string]fsutil.FS{…: dir, …}`; returns the names of variables by use."""
        self.expect("map", "[", "string", "]", "fsutil", ".", "FS", "{")
        found = {}
        while not self.accept("}"):
            words = []
            while self.text() != ":":
                words.append(self.text())
                self.at += 1
            self.at += 1
            variable = self.text()
            self.at += 1
            if self.text() not in (",", "}"):
                raise Unknown("a file system that is made otherwise")
            found["dockerfile" if "Dockerfile" in words[-1] else "context"] = variable
            self.accept(",")
        return found

    def warnings(self):
        self.expect("[", "]", "expectedLintWarning", "{")
        found = []
        while not self.accept("}"):
            one = self.structure({"RuleName": self.value, "Line": self.value})
            found.append((one["RuleName"], one.get("Line")))
            self.accept(",")
        return found

    def add(self, files, attributes, **more):
        number = len(self.cases) + 1
        self.cases.append(Case(self.function, self.file, number, files, attributes, **more))

    def step(self):
        """Reads one statement that matters, or passes one token."""
        start = self.at
        try:
            if self.kind() == "name" and self.text(1) in (":=", "=") and self.text(-1) not in (".", ","):
                name = self.text()
                self.at += 2
                if self.accept("integration", ".", "Tmpdir", "("):
                    self.directories.pop(name, None)
                    if self.text() == "t":
                        self.at += 1
                        self.accept(",")
                    self.directories[name] = self.appliers()
                    return
                self.values.pop(name, None)
                self.values[name] = self.value()
                return
            if self.accept("client", ".", "SolveOpt"):
                found = self.structure({
                    "FrontendAttrs": self.table, "LocalMounts": self.mounts,
                    **{name: self.refuse for name in ("Session", "CacheExports", "CacheImports", "FrontendInputs", "OCIStores")},
                })
                mounts = found.get("LocalMounts") or {}
                if mounts.get("context") != mounts.get("dockerfile"):
                    raise Unknown("a Dockerfile beside its context")
                files = self.directories.get(mounts.get("context"))
                if files is None:
                    raise Unknown("its files")
                self.add(files, found.get("FrontendAttrs") or {})
                return
            if self.accept("lintTestParams"):
                found = self.structure({
                    "Dockerfile": self.value, "DockerIgnore": self.value, "FrontendAttrs": self.table,
                    "Warnings": self.warnings, "UnmarshalWarnings": self.warnings, "TmpDir": self.refuse,
                })
                files = [("file", "Dockerfile", found["Dockerfile"], 0o600)]
                if found.get("DockerIgnore") is not None:
                    files.append(("file", ".dockerignore", found["DockerIgnore"], 0o600))
                # Those of a check alone: a build skips the stages that it does not need.
                checked = found.get("UnmarshalWarnings")
                # The test compares no lines there.
                warnings = [(rule, None) for rule, _ in checked] if checked else found.get("Warnings") or []
                self.add(files, found.get("FrontendAttrs") or {}, findings=warnings)
                return
            if self.text() == "os" and self.text(2) in CHANGES and self.text(3) == "(":
                self.at += 3
                first = self.at
                self.skip_group()
                words = [text for _, text in self.tokens[first:self.at]]
                for name in set(words) & set(self.directories):
                    del self.directories[name]
                return
            if self.accept("require", "."):
                verdict = {"NoError": True, "Error": False, "ErrorContains": False}.get(self.text())
                if verdict is not None and self.text(1) == "(" and self.text(2) == "t" and self.text(4) == "err":
                    if self.cases and self.cases[-1].succeeds is None:
                        self.cases[-1].succeeds = verdict
                return
        except (Unknown, KeyError, ValueError, IndexError) as why:
            self.skipped.add(str(why))
            self.at = start
        self.at += 1

    def refuse(self):
        raise Unknown("what only the client's interface gives")

    def read(self):
        while self.at < len(self.tokens):
            self.step()
        return self.cases


def functions(text):
    """Names and bodies of the functions of a file."""
    for match in re.finditer(r"^func (test\w+)\(t \*testing\.T, sb integration\.Sandbox\) \{\n(.*?)^\}", text, re.M | re.S):
        yield match.group(1), match.group(2)


def read(checkout):
    """Returns the cases, and by function why it has none."""
    cases, without = [], {}
    folder = pathlib.Path(checkout) / "frontend" / "dockerfile"
    files = sorted(folder.glob("*_test.go"))
    if not files:
        raise SystemExit(f"{folder} has no tests: this is no checkout of BuildKit")
    for file in files:
        for name, body in functions(file.read_text(encoding="utf-8")):
            if re.search(r'SkipOnPlatform\(t, "!windows"', body):
                without[name] = "Windows"
                continue
            found = Reader(name, file.name, body).read()
            cases += found
            if not found:
                reasons = [why for pattern, why in OUTSIDE if re.search(pattern, body)]
                without[name] = reasons[0] if reasons else "its files or attributes are computed"
    return cases, without
