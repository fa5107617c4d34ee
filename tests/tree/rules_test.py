#!/usr/bin/env python3
"""Every rule of the tree must find what it forbids and leave alone what it allows."""

import sys
import textwrap
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))

import allowances  # noqa: E402
import rules  # noqa: E402
from source_tree import Source, blank_comments_and_literals, functions  # noqa: E402


def tree(**files: str) -> list[Source]:
    """Files by path, with __ for / and _dot_ for the dot."""
    return [
        Source(name.replace("__", "/").replace("_dot_", "."), textwrap.dedent(text).encode())
        for name, text in files.items()
    ]


def header(path: str, body: str = "") -> Source:
    guard = "PENSTOCK_" + path.replace("/", "_").replace(".", "_").upper() + "_"
    text = f"// What.\n\n#ifndef {guard}\n#define {guard}\n\n{body}\n#endif  // {guard}\n"
    return Source(path, text.encode())


class FolderDependencies(unittest.TestCase):
    def complaints(self, path: str, include: str) -> list[str]:
        return rules.folder_dependencies([Source(path, f'#include "{include}"\n'.encode())])

    def test_against_the_arrow_is_found(self):
        for path, include in [
            ("common/base/a.h", "server/daemon/b.h"),
            ("common/base/a.h", "client/lib/b.h"),
            ("client/lib/a.cc", "server/daemon/b.h"),
            ("client/lib/a.cc", "connector/core/b.h"),
            ("server/daemon/a.cc", "client/lib/b.h"),
            ("connector/core/a.cc", "server/daemon/b.h"),
            ("common/base/a.cc", "tests/unit/b.h"),
            ("common/base/a.cc", "b.h"),
        ]:
            self.assertEqual(len(self.complaints(path, include)), 1, (path, include))

    def test_along_the_arrow_is_fine(self):
        for path, include in [
            ("server/daemon/a.cc", "common/base/b.h"),
            ("connector/core/a.cc", "client/lib/b.h"),
            ("tests/unit/a.cc", "server/daemon/b.h"),
            ("common/base/a.cc", "absl/strings/str_cat.h"),
        ]:
            self.assertEqual(self.complaints(path, include), [], (path, include))

    def test_circle_of_folders_is_found(self):
        found = rules.folder_dependencies(
            [
                Source("common/a/a.h", b'#include "common/b/b.h"\n'),
                Source("common/b/b.h", b'#include "common/c/c.h"\n'),
                Source("common/c/c.h", b'#include "common/a/a.h"\n'),
            ]
        )
        self.assertEqual(len(found), 1)
        self.assertIn("common/a -> common/b -> common/c -> common/a", found[0])


class PythonImports(unittest.TestCase):
    def test_client_must_not_know_the_connector(self):
        source = Source("client/python/penstock/a.py", b"from penstock_vllm import x\n")
        self.assertEqual(len(rules.python_imports([source])), 1)

    def test_connector_may_know_the_client(self):
        source = Source("connector/penstock_vllm/a.py", b"import penstock\nfrom . import b\n")
        self.assertEqual(rules.python_imports([source]), [])


class Lengths(unittest.TestCase):
    def test_file_of_601_lines(self):
        self.assertEqual(rules.file_length([Source("common/a.cc", b"\n" * 600)]), [])
        self.assertEqual(len(rules.file_length([Source("common/a.cc", b"\n" * 601)])), 1)

    def test_allowance_lifts_the_limit_of_one_file(self):
        with mock.patch.dict(allowances.LONG_FILES, {"common/a.cc": (700, "a table")}):
            self.assertEqual(rules.file_length([Source("common/a.cc", b"\n" * 700)]), [])
            self.assertEqual(len(rules.file_length([Source("common/b.cc", b"\n" * 700)])), 1)
            stale = [c for c in rules.stale_allowances([]) if "common/a.cc" in c]
            self.assertEqual(len(stale), 1)

    def test_function_of_71_lines(self):
        for lines, complaints in [(70, 0), (71, 1)]:
            body = "int F(int a) {\n" + "  a++;\n" * (lines - 2) + "}\n"
            self.assertEqual(
                len(rules.function_length([Source("a.cc", body.encode())])), complaints
            )

    def test_python_function_of_71_lines(self):
        for lines, complaints in [(70, 0), (71, 1)]:
            body = "def f(a):\n" + "    a += 1\n" * (lines - 1)
            self.assertEqual(
                len(rules.function_length([Source("a.py", body.encode())])), complaints
            )


class Functions(unittest.TestCase):
    def names(self, text: str) -> list[tuple[str, int]]:
        return [
            (f.name, f.lines) for f in functions(blank_comments_and_literals(textwrap.dedent(text)))
        ]

    def test_shapes_of_functions(self):
        cases = {
            "namespace a {\nint F() {\n  return 1;\n}\n}  // namespace a": [("F", 3)],
            "struct S {\n  int x = 0;\n  int F() const { return x; }\n};": [("F", 1)],
            "C::C(int a) : a_(a), b_{1, 2} {\n  G();\n}": [("C::C", 3)],
            "C::C(int a)\n    : a_(std::move(a)),\n      b_(2) {\n}": [("C::C", 2)],
            "C::~C() {\n  for (;;) { if (x) { y(); } }\n}": [("C::~C", 3)],
            "bool operator==(const A& a, const A& b) {\n  return true;\n}": [("operator==", 3)],
            "TEST(Suite, Name) {\n  EXPECT_TRUE(F({1, 2}));\n}": [("TEST(Suite, Name)", 3)],
            "std::vector<int> kV = {1, 2};\nint F(std::vector<int> a = {}) {\n}": [("F", 2)],
            "struct Digest Make(int a) {\n  return {};\n}": [("Make", 3)],
            "template <class T>\nclass Q {\n public:\n  void P(T t) {\n    p(t);\n  }\n};": [
                ("P", 3)
            ],
            "class ABSL_LOCKABLE M {\n  void L() ABSL_F(mu) { l(); }\n};": [("L", 1)],
            "auto F = [](int a) { return a; };\nvoid G() {\n}": [("G", 2)],
            '#define X(a) \\\n  do { a; } while (0)\nvoid G() {\n  f("}");  // }\n}': [("G", 3)],
            "enum class E : uint8_t { kA = 1 };\nvoid G() {\n}": [("G", 2)],
            "void G() {\n  char c = '{';\n  auto r = R\"({{{)\";\n}": [("G", 4)],
            "constexpr std::array kBans = {\n  Ban{f(1)},\n};\nvoid G() {\n}": [("G", 2)],
            "auto G(int a) -> Result<int> {\n  return a;\n}": [("G", 3)],
            "int n = 1'000'000;\nvoid G() {\n}": [("G", 2)],
        }
        for text, expected in cases.items():
            self.assertEqual(list(self.names(text))[-len(expected) :], expected, text)


class BannedTokens(unittest.TestCase):
    def complaints(self, path: str, text: str) -> int:
        return len(rules.banned_tokens([Source(path, text.encode())]))

    def test_each_ban_bites(self):
        for text in [
            'auto* e = getenv("A");',
            "std::cout << 1;",
            "std::this_thread::sleep_for(x);",
            "usleep(5);",
            "sleep(1);",
            "absl::Mutex mu;",
            "std::mutex mu;",
            "std::lock_guard<M> lock(mu);",
            "int x = rand() % 3;",
            "auto t = std::chrono::system_clock::now();",
            "auto t = time(nullptr);",
            "sprintf(b, f);",
            "using namespace std;",
            "thread.detach();",
        ]:
            self.assertEqual(self.complaints("common/base/a.cc", text), 1, text)
        self.assertEqual(self.complaints("CMakeLists.txt", "add_compile_options(-march=native)"), 1)
        self.assertEqual(self.complaints("tests/a.py", "# TO" + "DO: later"), 1)

    def test_look_alikes_do_not(self):
        for text in [
            "// getenv() is not for us: std::cout",
            'Log("sleep(1) and std::mutex");',
            "rng.rand(3); operand(1); x = obj->time(); Deadline::time(a);",
            "snprintf(b, n, f); client.sleep(1); strcpy_safe(a);",
        ]:
            self.assertEqual(self.complaints("common/base/a.cc", text), 0, text)

    def test_allowed_places(self):
        self.assertEqual(self.complaints("common/config/env.cc", 'getenv("A");'), 0)
        self.assertEqual(self.complaints("client/cli/put.cc", "std::cout << 1;"), 0)
        self.assertEqual(self.complaints("common/base/mutex.h", "std::mutex mu_;"), 0)


class IncludeGuards(unittest.TestCase):
    def test_guard_from_the_path(self):
        self.assertEqual(rules.include_guards([header("common/base/a.h")]), [])

    def test_wrong_or_missing_guard(self):
        moved = Source("common/base/b.h", header("common/base/a.h").data)
        for source in [moved, Source("common/base/a.h", b"#pragma once\n"), Source("a.h", b"")]:
            self.assertEqual(len(rules.include_guards([source])), 1, source.path)


class OneClassAName(unittest.TestCase):
    def complaints(self, first: str, second: str, path: str = "client/b.h") -> int:
        files = [header("common/a.h", first), header(path, second)]
        return len(rules.one_class_a_name(files))

    def test_the_same_name_in_the_same_namespace_is_found(self):
        code = "namespace penstock {\nclass Queue final : public Base {\n};\n}\n"
        self.assertEqual(self.complaints(code, code.replace(" final : public Base", "")), 1)

    def test_other_namespaces_declarations_and_tests_are_fine(self):
        code = "namespace penstock {\nclass Queue {\n};\n}\n"
        self.assertEqual(self.complaints(code, code.replace("penstock", "penstock::cli")), 0)
        self.assertEqual(self.complaints(code, "namespace penstock {\nclass Queue;\n}\n"), 0)
        self.assertEqual(self.complaints(code, code.replace("Queue {", "Queue::Part {")), 0)
        self.assertEqual(self.complaints(code, code, "tests/b.h"), 0)


class OwnHeaderFirst(unittest.TestCase):
    def complaints(self, text: str) -> int:
        files = [header("common/a.h"), Source("common/a.cc", text.encode())]
        return len(rules.own_header_first(files))

    def test_own_header_comes_first(self):
        self.assertEqual(self.complaints('// What.\n#include "common/a.h"\n\n#include <map>\n'), 0)
        self.assertEqual(self.complaints('#include <map>\n#include "common/a.h"\n'), 1)
        self.assertEqual(self.complaints("int a;\n"), 1)


class Words(unittest.TestCase):
    def test_private_paths_are_found_anywhere(self):
        for text in ["see /wor" + "k/main/x", "cd /roo" + "t/a", "a sub" + "agent wrote this"]:
            self.assertEqual(
                len(rules.private_words([Source("docs/a.md", text.encode())])), 1, text
            )

    def test_like_words_are_fine(self):
        for text in [
            "the framework/main part",
            "network/base",
            "CMAKE_FIND_ROOT_PATH",
            "out/root/x",
        ]:
            self.assertEqual(rules.private_words([Source("docs/a.md", text.encode())]), [], text)

    def test_licence_must_be_whole(self):
        self.assertEqual(len(rules.licence([])), 3)
        self.assertEqual(len(rules.licence(tree(deploy__quickstart__text__a_dot_txt="x"))), 4)

    def test_text_hygiene(self):
        for data in [b"a", b"a\n\n", b"a \n", b"\ta\n", b"\xff\xfe\n"]:
            self.assertEqual(len(rules.text_hygiene([Source("a.cc", data)])), 1, data)
        self.assertEqual(rules.text_hygiene([Source("a.cc", b"a\n"), Source("b.py", b"")]), [])

    def test_tests_named_by_the_page_of_faults_exist(self):
        page = "| x | y | `tests/a_test.cc` FirstTest, ASecondTest; `tests/b.py` test_one |\n"
        files = [
            Source(rules.FAULTS_PAGE, page.encode()),
            Source("tests/a_test.cc", b"TEST(A, FirstTest) {}\n"),
            Source("tests/b.py", b"def test_one_more():\n"),
        ]
        problems = rules.named_tests(files)
        self.assertEqual(len(problems), 2, problems)
        self.assertIn("ASecondTest", problems[0])
        self.assertIn("test_one", problems[1])
        self.assertEqual(len(rules.named_tests(files[:2])), 2)
        self.assertEqual(rules.named_tests([]), [])


if __name__ == "__main__":
    unittest.main()
