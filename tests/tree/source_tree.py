"""The files of the tree, and enough of C++'s lexical structure to check rules on them."""

import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

CPP_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
_SKIPPED_FOLDERS = re.compile(
    r"^(build(-.*)?|\.venv.*|\.git|\.cache|__pycache__|.*\.egg-info|\.pytest_cache|\.ruff_cache"
    r"|\.hypothesis|dist|wheelhouse)$"
)


@dataclass
class Source:
    """One file of the tree. `path` is relative to the root, with slashes."""

    path: str
    data: bytes = field(repr=False)

    @cached_property
    def text(self) -> str:
        return self.data.decode("utf-8", errors="replace")

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def is_text(self) -> bool:
        return b"\0" not in self.data[:4096]

    @property
    def suffix(self) -> str:
        return os.path.splitext(self.path)[1]

    @property
    def is_cpp(self) -> bool:
        return self.suffix in CPP_SUFFIXES

    @property
    def is_header(self) -> bool:
        return self.suffix in {".h", ".cuh"}

    @property
    def is_python(self) -> bool:
        return self.suffix in {".py", ".pyi"}

    @property
    def is_shell(self) -> bool:
        return self.suffix == ".sh" or bool(re.match(r"#!.*\b(ba)?sh\b", self.lines[0]))

    @property
    def is_cmake(self) -> bool:
        return self.suffix == ".cmake" or self.path.split("/")[-1] == "CMakeLists.txt"

    @cached_property
    def code(self) -> str:
        """C++ text with comments and the contents of literals blanked; lines stay where they are."""
        return blank_comments_and_literals(self.text)


def load(root: Path) -> list[Source]:
    """Every file that belongs to the tree: what git would keep, found without git."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if not _SKIPPED_FOLDERS.match(f))
        for name in sorted(files):
            path = Path(folder) / name
            if name.endswith(".pyc") or name == "compile_commands.json" or name == ".git":
                continue
            if path.suffix == ".so" or path.is_symlink():
                continue
            found.append(Source(path.relative_to(root).as_posix(), path.read_bytes()))
    return found


_TOKEN = re.compile(
    r"//[^\n]*"
    r"|/\*.*?\*/"
    r'|R"(?P<delim>[^()\\\s]{0,16})\(.*?\)(?P=delim)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)


def blank_comments_and_literals(text: str) -> str:
    def blank(match: re.Match) -> str:
        token = match.group(0)
        kept = re.sub(r"[^\n]", " ", token)
        return '"' + kept[1:-1] + '"' if token[0] in "\"'R" and len(token) > 1 else kept

    # The path of an #include is wanted by rules on includes, which read `text`.
    return _TOKEN.sub(blank, text)


@dataclass
class Function:
    name: str
    line: int  # Of the opening brace, from 1.
    lines: int  # From the opening to the closing brace, both counted.


_NAMESPACE = re.compile(r'\bnamespace\b|\bextern\s*"')
_TYPE = re.compile(r"^\s*(?:template\s*<.*>\s*)?(?:typedef\s+)?(?:class|struct|union|enum)\b", re.S)


def functions(code: str) -> list[Function]:
    """Functions of blanked C++ text, with their lengths. Lambdas count as part of what holds them.

    Reads braces, not grammar: at namespace or class scope, text with a parameter list before a
    brace is a function, and braces that follow a constructor's colon initialise members.
    """
    found: list[Function] = []
    stack: list[tuple[str, str, int]] = []  # Kind, name, line.
    head = ""
    line = 1
    depth_inside = 0  # Braces below the function being read.
    for char in re.sub(r"(?ms)^[ \t]*#(?:[^\n\\]|\\.)*", _keep_newlines, code):
        if char == "\n":
            line += 1
        if stack and stack[-1][0] == "function":
            if char == "{":
                depth_inside += 1
            elif char == "}":
                if depth_inside:
                    depth_inside -= 1
                else:
                    _, name, start = stack.pop()
                    found.append(Function(name, start, line - start + 1))
                    head = ""
            continue
        if char == "{":
            kind = _classify(head)
            stack.append((kind, _name_of(head), line))
            head = head + "{" if kind == "initialiser" else ""
        elif char == "}":
            kind = stack.pop()[0] if stack else "namespace"
            head = head + "}" if kind == "initialiser" else ""
        elif char == ";":
            if not (stack and stack[-1][0] == "initialiser"):
                head = ""
        else:
            head += char
    return found


def _keep_newlines(match: re.Match) -> str:
    return re.sub(r"[^\n]", " ", match.group(0))


def _classify(head: str) -> str:
    if _NAMESPACE.search(head) and "(" not in head:
        return "namespace"
    text = re.sub(r"\b(public|private|protected)\s*:", " ", head)
    if _TYPE.match(text) and not _has_parameters(text):
        return "type"
    if "(" not in text or "=" in re.sub(r"operator\s*\W+\(|[=!<>]=|=\s*\(", "", text.split("(")[0]):
        return "initialiser"
    if text.count("(") > text.count(")"):
        return "initialiser"  # A default argument.
    # `Name::Name(...) : a_(1), b_` before a brace that initialises b_.
    after = text[text.rfind(")") + 1 :] if ")" in text else ""
    if re.search(r"\)\s*(noexcept\s*)?:[^:]", text) and re.search(
        r"[,:]\s*[\w:<>]+\s*$", after or text
    ):
        return "initialiser"
    return "function"


def _has_parameters(text: str) -> bool:
    """Whether a class-key head is a function that returns a struct, rather than a type."""
    bare = re.sub(r"alignas\s*\([^)]*\)|ABSL_\w+\s*\([^)]*\)|__attribute__\s*\(\(.*?\)\)", "", text)
    bare = re.sub(r"<[^<>]*>", "", bare)
    return "(" in bare


def _name_of(head: str) -> str:
    match = re.search(r"([~\w:]+|operator\s*\S+)\s*\(([^()]*)", head)
    if not match:
        return "?"
    if match.group(1).startswith("TEST") or match.group(1) == "TYPED_TEST":
        return f"{match.group(1)}({match.group(2).strip()})"
    return match.group(1)
