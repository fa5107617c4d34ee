"""The tree's own rules. Each takes the list of files and returns its complaints, one string each."""

import ast
import re
from collections import defaultdict

import allowances
from source_tree import Source, functions

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

# Which folders a folder may include from, beside itself. One way only: no entry may point back.
MAY_INCLUDE = {
    "common": set(),
    "kernels": {"common"},
    "client": {"common", "kernels"},
    "connector": {"common", "kernels", "client"},
    "server": {"common", "kernels"},
    "tests": {"common", "kernels", "client", "connector", "server"},
}
PYTHON_MAY_IMPORT = {
    "client": set(),
    "connector": {"penstock"},
}
OWN_PYTHON_PACKAGES = {"penstock", "penstock_vllm", "penstock_sglang"}

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def _at(source: Source, offset: int) -> str:
    return f"{source.path}:{source.text.count(chr(10), 0, offset) + 1}"


def _top(path: str) -> str:
    return path.split("/")[0]


def folder_dependencies(tree: list[Source]) -> list[str]:
    """Folders include one way: common <- kernels <- client <- connector, common <- server."""
    problems = []
    for source in tree:
        home = _top(source.path)
        if not source.is_cpp or home not in MAY_INCLUDE:
            continue
        for match in _INCLUDE.finditer(source.text):
            other = _top(match.group(1))
            if other in MAY_INCLUDE and other != home and other not in MAY_INCLUDE[home]:
                problems.append(
                    f"{_at(source, match.start(1))}: {home}/ must not include from {other}/"
                    f" ({match.group(1)}); it may from: {', '.join(sorted(MAY_INCLUDE[home])) or 'nothing'}"
                )
            elif "/" not in match.group(1) and not match.group(1).endswith(".pb.h"):
                problems.append(f"{_at(source, match.start(1))}: include by the path from the root")
    return problems + _folder_cycles(tree)


def _folder_cycles(tree: list[Source]) -> list[str]:
    """Folders one level further down (common/base, server/daemon/index) must not form a cycle."""
    edges: dict[str, set[str]] = defaultdict(set)
    folders = {
        source.path.rsplit("/", 1)[0] for source in tree if source.is_cpp and "/" in source.path
    }
    for source in tree:
        if source.is_cpp and "/" in source.path and _top(source.path) != "tests":
            home = source.path.rsplit("/", 1)[0]
            for match in _INCLUDE.finditer(source.text):
                other = match.group(1).rsplit("/", 1)[0]
                if other in folders and other != home:
                    edges[home].add(other)
    problems = []
    state: dict[str, int] = {}

    def visit(folder: str, trail: list[str]) -> None:
        state[folder] = 1
        for other in sorted(edges[folder]):
            if state.get(other) == 1:
                cycle = trail[trail.index(other) :] + [other]
                problems.append("folders include each other in a circle: " + " -> ".join(cycle))
            elif other not in state:
                visit(other, trail + [other])
        state[folder] = 2

    for folder in sorted(edges):
        if folder not in state:
            visit(folder, [folder])
    return problems


def python_imports(tree: list[Source]) -> list[str]:
    """The Python packages depend one way too: penstock <- penstock_vllm."""
    problems = []
    for source in tree:
        home = _top(source.path)
        if source.suffix != ".py" or home not in PYTHON_MAY_IMPORT:
            continue
        own = {part for part in source.path.split("/") if part in OWN_PYTHON_PACKAGES}
        for node in ast.walk(ast.parse(source.text)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            else:
                continue
            for name in (n.split(".")[0] for n in names):
                allowed = (
                    own | PYTHON_MAY_IMPORT[home] | ({"penstock"} if home == "client" else set())
                )
                if name in OWN_PYTHON_PACKAGES - allowed and "/tests/" not in source.path:
                    problems.append(f"{source.path}:{node.lineno}: {home}/ must not import {name}")
    return problems


def file_length(tree: list[Source]) -> list[str]:
    """No source file is longer than 600 lines."""
    problems = []
    for source in tree:
        if not (source.is_cpp or source.is_python or source.is_shell or source.is_cmake):
            continue
        lines = source.text.count("\n")
        limit = allowances.LONG_FILES.get(source.path, (FILE_LINES_MAX, ""))[0]
        if lines > limit:
            problems.append(f"{source.path}: {lines} lines, limit {limit}: split it along an idea")
    return problems


def function_length(tree: list[Source]) -> list[str]:
    """No function is longer than 70 lines, from brace to brace."""
    problems = []
    for source in tree:
        if source.is_cpp:
            found = [(f.name, f.line, f.lines) for f in functions(source.code)]
        elif source.suffix == ".py":
            found = [
                (node.name, node.lineno, node.end_lineno - node.lineno + 1)
                for node in ast.walk(ast.parse(source.text))
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            ]
        else:
            continue
        for name, line, lines in found:
            limit = allowances.LONG_FUNCTIONS.get(
                f"{source.path}:{name}", (FUNCTION_LINES_MAX, "")
            )[0]
            if lines > limit:
                problems.append(f"{source.path}:{line}: {name} has {lines} lines, limit {limit}")
    return problems


def stale_allowances(tree: list[Source]) -> list[str]:
    """An allowance whose file or function is gone, or fits the limit again, goes too."""
    problems = []
    by_path = {source.path: source for source in tree}
    for path, (limit, reason) in allowances.LONG_FILES.items():
        if path not in by_path or by_path[path].text.count("\n") <= FILE_LINES_MAX:
            problems.append(
                f"tests/tree/allowances.py: LONG_FILES[{path!r}] is not needed any more"
            )
        elif not reason or limit <= FILE_LINES_MAX:
            problems.append(
                f"tests/tree/allowances.py: LONG_FILES[{path!r}] needs a limit and a reason"
            )
    for key in allowances.LONG_FUNCTIONS:
        if key.split(":")[0] not in by_path:
            problems.append(
                f"tests/tree/allowances.py: LONG_FUNCTIONS[{key!r}] is not needed any more"
            )
    for ban in allowances.BANS:
        for prefix in ban.allowed_under:
            if not any(path.startswith(prefix) for path in by_path) and not prefix.endswith("/"):
                problems.append(
                    f"tests/tree/allowances.py: {prefix} (allowed for {ban.what}) is gone"
                )
    return problems


def banned_tokens(tree: list[Source]) -> list[str]:
    """Calls and flags that the project does without; each ban names what to use instead."""
    problems = []
    for source in tree:
        if _top(source.path) == "tests" and source.path.startswith("tests/tree/"):
            continue  # Names what it bans.
        for ban in allowances.BANS:
            if not ban.applies_to(source) or source.path.startswith(tuple(ban.allowed_under)):
                continue
            text = source.code if source.is_cpp else source.text
            for match in ban.pattern.finditer(text):
                problems.append(f"{_at(source, match.start())}: {ban.what}: use {ban.instead}")
    return problems


def include_guards(tree: list[Source]) -> list[str]:
    """Every header is guarded by a macro derived from its path."""
    problems = []
    for source in tree:
        if not source.is_header:
            continue
        guard = "PENSTOCK_" + re.sub(r"[^A-Za-z0-9]", "_", source.path).upper() + "_"
        code = source.code.strip()
        if not re.match(rf"#ifndef {guard}\n#define {guard}\n", code):
            problems.append(f"{source.path}: must begin with #ifndef {guard} and #define {guard}")
        elif not re.search(r"#endif\s*$", code) or not re.search(
            rf"#endif\s+(// {guard}|/\* {guard} \*/)\s*$", source.text
        ):
            problems.append(f"{source.path}: must end with #endif  // {guard}")
    return problems


def own_header_first(tree: list[Source]) -> list[str]:
    """foo.cc includes foo.h before anything else, which shows that foo.h compiles alone."""
    paths = {source.path for source in tree}
    problems = []
    for source in tree:
        own = source.path.removesuffix(".cc") + ".h"
        if source.suffix == ".cc" and own in paths:
            first = re.search(r'^\s*#\s*include\s+["<]([^">]+)[">]', source.text, re.M)
            if not first or first.group(1) != own:
                problems.append(f"{source.path}: its first include must be {own}")
    return problems


def one_class_a_name(tree: list[Source]) -> list[str]:
    """No two product headers define a class of the same name in the same namespace.

    Linked into one program they would share their inline functions, and one of them would run the
    other's.
    """
    seen: dict[tuple[str, str], str] = {}
    problems = []
    for source in tree:
        if not source.is_header or source.path.startswith("tests/"):
            continue
        spaces = re.findall(r"^(?:inline )?namespace ([\w:]+) \{", source.code, re.M)
        for match in re.finditer(
            r"^(?:class|struct)\s+(?:\[\[\w+\]\]\s+)?(\w+)\s*(?:final\s*)?(?::[^:;{][^;{]*)?\{",
            source.code,
            re.M,
        ):
            name = "::".join([*spaces, match.group(1)])
            # A command and the daemon are never one program.
            program = _top(source.path) if _top(source.path) == "server" else ""
            first = seen.setdefault((program, name), source.path)
            if first != source.path:
                problems.append(f"{_at(source, match.start())}: {name} is defined in {first}, too")
    return problems


def licence(tree: list[Source]) -> list[str]:
    """The licence is in the tree, whole, and every shipped text says whose it is."""
    by_path = {source.path: source for source in tree}
    problems = []
    text = by_path["LICENSE"].text if "LICENSE" in by_path else ""
    for part in ("Apache License", "Version 2.0, January 2004", "END OF TERMS AND CONDITIONS"):
        if part not in text:
            problems.append(f"LICENSE: lacks {part!r}")
    for folder in {
        s.path.rsplit("/", 1)[0] for s in tree if s.path.startswith("deploy/quickstart/text/")
    }:
        if f"{folder}/README.md" not in by_path:
            problems.append(
                f"{folder}: a README.md must say where the text is from and its licence"
            )
    return problems


_PRIVATE = re.compile(
    r"(?<![\w.])/(?:wor[k]|roo[t])/|\bsub-?agent|\bfar[m]-(?:bench|studio)|[.]librar[y]/|\bbefore-sto[p]\b"
)


def private_words(tree: list[Source]) -> list[str]:
    """No path of a developer's own machine and no word of anybody's private set-up."""
    problems = []
    for source in tree:
        if source.is_text:
            for match in _PRIVATE.finditer(source.text):
                problems.append(
                    f"{_at(source, match.start())}: {match.group(0)!r} is private to a machine"
                )
    return problems


def text_hygiene(tree: list[Source]) -> list[str]:
    """Text files are UTF-8, end with one newline, and have no trailing blanks, tabs or CRs."""
    problems = []
    for source in tree:
        checked = source.is_cpp or source.is_python or source.is_shell or source.is_cmake
        if not (checked or source.suffix in {".md", ".json", ".yaml", ".proto"}):
            continue
        try:
            source.data.decode("utf-8")
        except UnicodeDecodeError:
            problems.append(f"{source.path}: not UTF-8")
            continue
        if source.text and (not source.text.endswith("\n") or source.text.endswith("\n\n")):
            problems.append(f"{source.path}: must end with exactly one newline")
        for number, line in enumerate(source.lines, 1):
            if line != line.rstrip() and source.suffix != ".md":
                problems.append(f"{source.path}:{number}: blanks at the end of the line")
            if "\t" in line and (source.is_cpp or source.is_python or source.is_cmake):
                problems.append(f"{source.path}:{number}: a tab")
    return problems


FAULTS_PAGE = "tests/faults/README.md"
_NAMED_FILE = re.compile(r"`(tests/[^`]+\.\w+)`([^|;`]*)")
_TEST_NAME = re.compile(r"\b(?:test_\w+|[A-Z]\w*[a-z]\w*[A-Z]\w*)\b")


def named_tests(tree: list[Source]) -> list[str]:
    """Every test that tests/faults/README.md names is there, in the file that it names."""
    texts = {source.path: source.text for source in tree}
    problems = []
    for match in _NAMED_FILE.finditer(texts.get(FAULTS_PAGE, "")):
        path, names = match.groups()
        where = f"{FAULTS_PAGE}:{texts[FAULTS_PAGE].count(chr(10), 0, match.start()) + 1}"
        if path not in texts:
            problems.append(f"{where}: there is no {path}")
            continue
        for name in _TEST_NAME.findall(names):
            if not re.search(rf"\b{name}\b", texts[path]):
                problems.append(f"{where}: {path} has no test {name}")
    return problems


RULES = {
    rule.__name__: rule
    for rule in (
        folder_dependencies,
        python_imports,
        file_length,
        function_length,
        stale_allowances,
        banned_tokens,
        include_guards,
        own_header_first,
        one_class_a_name,
        licence,
        private_words,
        text_hygiene,
        named_tests,
    )
}
