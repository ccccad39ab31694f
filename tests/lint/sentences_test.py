#!/usr/bin/env python3
"""Shows that the check of sentences can fail: in each language, at each place where a sentence begins."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from made_tree import made_tree  # noqa: E402
import sentences  # noqa: E402


class Sentences(unittest.TestCase):
    def lines(self, name, text):
        return [line for line, _ in sentences.check_text(name, text)]

    def test_tree(self):
        with made_tree({"src/a.cpp": "int a;\n// Who waits\n", "tests/a.md": "It is.\n", "tests/b.txt": "What\n"}) as root:
            self.assertEqual(sentences.check_sentences(root),
                             [("src/a.cpp", 2, 'the sentence begins with "Who"; begin with its subject')])

    def test_openers(self):
        for opener in ("Who", "Whoever", "Of", "What", "As"):
            self.assertEqual(self.lines("a.cpp", f"// {opener} it\n"), [1])
        for word in ("Whole", "Often", "Ask", "what", "as", "Whose", "What::kInit", "What()", "When"):
            self.assertEqual(self.lines("a.cpp", f"// {word} it\n"), [], word)

    def test_places_in_c(self):
        for text, line in (("int a;  // As b\n", 1), ("/* Of a */\n", 1), ("/*\n * It is.\n *\n * What\n */\n", 4),
                           ("// It is. Who\n", 1), ("// It is.\n// Who goes\n", 2), ("// a:\n//   - Who\n", 2),
                           ("// It is: What\n", 1), ("// It is; Of\n", 1), ("// --- A\nint a;\n//\n// (Of it)\n", 4),
                           ("f(\"//\");  // What\n", 1), ("f('\"');  // \"a\". What\n", 1), ("// It is (a).  What\n", 1),
                           ("/// What\n", 1), ("int a;  ///< Of it\n", 1), ("// a\n// What\n", 2), ("/* a\n * What */\n", 2),
                           ("/* a\n *  - What */\n", 2)):
            with self.subTest(text=text):
                self.assertEqual(self.lines("src/a.hpp", text), [line])
        for text in ("f(\"// What\");\n", "R\"(\" // What)\";\n", "// a thing\n// of it\n", "What a;  // of it\n",
                     "// It says \"a. What\".\n", "// The rank that is called Who\n"):
            with self.subTest(text=text):
                self.assertEqual(self.lines("src/a.hpp", text), [])

    def test_other_languages(self):
        python = '"""It is.\n\nWhat"""\nx = """\nWhat\n"""\ny = "# What"  # As z\n\n\ndef f():\n    """Of it."""\n'
        self.assertEqual(self.lines("a.py", python), [3, 7, 11])
        self.assertEqual(self.lines("a.f90", "x = '! What'\n! What\n"), [2])
        for name in ("a.cmake", "a.sh", "x/CMakeLists.txt", "dev"):
            self.assertEqual(self.lines(name, "set(a \"# What\" b#What)\n# What\n"), [2], name)
        self.assertEqual(self.lines("CMakeOther.txt", "# What\n"), [])

    def test_markdown(self):
        page = ("# What it is: What\n\nIt is. Who\ngoes: Of\n\nAs a\n- What\n1. **Who**\n\n| Who | Of |\n|---|---|\n| As | b |\n"
                "\n```\nIt is. What\n```\n> It is. What\n\n`a. What` and \"b. What\"\nWhat\n")
        self.assertEqual(self.lines("a.md", page), [3, 4, 6, 7, 8, 12, 20])

    def test_files_that_are_not_looked_at(self):
        for name in ("CHANGELOG.md", "docs/" "measurements/a.md", *(f"{path}a.hpp" for path in sentences.NOT_DONE)):
            self.assertEqual(self.lines(name, "// What\n\nWhat\n"), [], name)


if __name__ == "__main__":
    unittest.main()
