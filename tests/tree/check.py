#!/usr/bin/env python3
"""Checks the tree against its own rules: check.py [RULE...]; no RULE means all. Exit status 1 on a complaint."""

import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))

import rules  # noqa: E402
import source_tree  # noqa: E402


def main() -> int:
    if "--help" in sys.argv or "-h" in sys.argv:
        print(
            __doc__, *(f"  {name}: {rule.__doc__}" for name, rule in rules.RULES.items()), sep="\n"
        )
        return 0
    wanted = sys.argv[1:] or list(rules.RULES)
    unknown = [name for name in wanted if name not in rules.RULES]
    if unknown:
        print(f"no rule {', '.join(unknown)}; there are: {', '.join(rules.RULES)}", file=sys.stderr)
        return 2
    tree = source_tree.load(Path(__file__).resolve().parents[2])
    failed = 0
    for name in wanted:
        problems = rules.RULES[name](tree)
        print(f"{name}: {len(problems)} complaints over {len(tree)} files")
        print(*(f"  {problem}" for problem in problems), sep="\n", end="\n" if problems else "")
        failed += bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
