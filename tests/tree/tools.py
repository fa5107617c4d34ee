#!/usr/bin/env python3
"""Runs the formatters and linters over the tree.

tools.py TOOL [--build DIR] [--jobs N], TOOL one of:
  clang-format   every C++ file is formatted as .clang-format says
  shellcheck     every shell script is free of complaints
  ruff           every Python file is formatted and free of complaints
  tidy           clang-tidy over the compile database of --build (preset tidy, whose unity files make
                 it four times quicker: headers are read once for several sources); units that were
                 clean before, with the same headers and settings, are not read again
A tool that is not installed is skipped with exit status 77, or fails where DEV_REQUIRE_TOOLS is 1.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))

import source_tree  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 77
TIDY_OPTIONS = (
    "--warnings-as-errors=*",
    "--checks=-bugprone-suspicious-include",  # Unity files include sources: that is their purpose.
    "--extra-arg=-Wno-unknown-warning-option",
)


def find(*names: str) -> str:
    for name in names:
        beside = Path(sys.executable).parent / name
        venv = Path(os.environ.get("DEV_VENV", ROOT / ".venv")) / "bin" / name
        for candidate in (shutil.which(name), venv, beside):
            if candidate and os.access(candidate, os.X_OK):
                return str(candidate)
    print(f"not installed: {' or '.join(names)}")
    sys.exit(1 if os.environ.get("DEV_REQUIRE_TOOLS") == "1" else SKIPPED)


def files(wanted) -> list[str]:
    return [source.path for source in source_tree.load(ROOT) if wanted(source)]


def run(command: list[str]) -> int:
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def clang_format(_) -> int:
    tool = find("clang-format-14", "clang-format")
    paths = files(lambda s: s.is_cpp)
    rc = run([tool, "--dry-run", "-Werror", "--ferror-limit=1", *paths])
    print(
        f"clang-format: {len(paths)} files" + ("" if rc == 0 else f"; mend with: {tool} -i FILE...")
    )
    return rc


def shellcheck(_) -> int:
    tool = find("shellcheck")
    paths = files(lambda s: s.is_shell)
    print(f"shellcheck: {len(paths)} files")
    return run([tool, "-x", *paths]) if paths else 0


def ruff(_) -> int:
    tool = find("ruff")
    paths = files(lambda s: s.is_python)
    print(f"ruff: {len(paths)} files")
    rc = run([tool, "check", "--no-cache", "--quiet", *paths])
    return rc or run([tool, "format", "--no-cache", "--check", *paths])


def _tidy_key(entry: dict, settings: bytes) -> str:
    """Names everything that decides what clang-tidy says: settings, command, and all files read."""
    command = [a for a in shlex.split(entry["command"]) if not a.endswith("ccache")]
    listing = [a for a in command if a not in ("-c",)]
    output = listing.index("-o")
    del listing[output : output + 2]
    deps = subprocess.run(
        [*listing, "-MM", "-MF", "-"],
        cwd=entry["directory"],
        capture_output=True,
        text=True,
        check=True,
    )
    digest = hashlib.sha256(settings + repr(listing).encode())
    for name in deps.stdout.replace("\\\n", " ").split()[1:]:
        digest.update(Path(entry["directory"], name).read_bytes())
    return digest.hexdigest()


def _tidy_one(
    tool: str, entry: dict, build: Path, stamps: Path, settings: bytes
) -> tuple[int, str]:
    try:
        stamp = stamps / _tidy_key(entry, settings)
    except (subprocess.CalledProcessError, ValueError) as error:
        return 1, f"cannot list what {entry['file']} includes: {error}"
    if stamp.exists():
        return 0, ""
    command = [tool, "-p", str(build), "--quiet", *TIDY_OPTIONS, entry["file"]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        stamp.touch()
        return 0, ""
    return done.returncode, done.stdout + done.stderr


def _sources(entry: dict, build: Path) -> list[str]:
    """Our sources that one compile command reads: several where CMake made a unity file of them."""
    path = Path(entry["file"])
    names = [path]
    if path.is_relative_to(build):
        names = [Path(n) for n in re.findall(r'^#include "(.*)"', path.read_text(), re.MULTILINE)]
    return [
        str(name.relative_to(ROOT))
        for name in names
        if name.is_relative_to(ROOT) and not name.is_relative_to(build)
    ]


def tidy(options) -> int:
    tool = find("clang-tidy-14", "clang-tidy")
    build = Path(options.build).resolve()
    units = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        sources = _sources(entry, build)
        if sources:
            units.append((sources, entry))
    units.sort(key=lambda unit: -len(unit[0]))
    stamps = build / "tidy"
    stamps.mkdir(exist_ok=True)
    settings = (ROOT / ".clang-tidy").read_bytes() + repr(TIDY_OPTIONS).encode()
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        jobs = {
            pool.submit(_tidy_one, tool, entry, build, stamps, settings): sources
            for sources, entry in units
        }
        for number, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            rc, complaint = job.result()
            print(f"[{number}/{len(jobs)}] {' '.join(jobs[job])}", flush=True)
            if rc:
                print(complaint, flush=True)
                failed += 1
    # What tests/run.sh counts, as pytest and ctest would say it.
    print(f"clang-tidy: {sum(len(s) for s, _ in units)} files in {len(units)} units")
    print(f"{len(units) - failed} passed, {failed} failed")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    tools = {"clang-format": clang_format, "shellcheck": shellcheck, "ruff": ruff, "tidy": tidy}
    parser.add_argument("tool", choices=tools)
    parser.add_argument("--build", default=ROOT / "build-tidy")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    return tools[options.tool](options)


if __name__ == "__main__":
    sys.exit(main())
