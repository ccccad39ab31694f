#!/usr/bin/env python3
"""Engines that import deep_ep and are not changed: by vLLM's entry point, and by python -m mep.deep_ep. It alone finds
processes that start without mep.deep_ep; mep.mooncake and mep.nixl_ep are started in the same ways."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 300
FILES = {
    # Looks for deep_ep once, when it is imported.
    "engine/layers.py": """
try:
    import deep_ep
    import deep_ep.utils
    from deep_ep import Buffer
    FOUND = deep_ep.__name__
except ImportError:
    FOUND = "nothing"
""",
    "engine/__init__.py": "",
    "engine/worker.py": """
import multiprocessing, sys
from engine import layers

def work(depth, results):
    results.put((depth, layers.FOUND, getattr(sys.modules["__main__"], "MARK", None)))
    if depth < 2:
        start(work, depth + 1, results)

def start(target, depth, results):
    child = multiprocessing.get_context("spawn").Process(target=target, args=(depth, results))
    child.start()
    child.join()
    assert child.exitcode == 0, child.exitcode
""",
    "engine/launch.py": """
import multiprocessing, sys
from . import layers
from .worker import start, work
MARK = "of the program"

def own(depth, results):
    work(depth, results)

if __name__ == "__main__":
    results = multiprocessing.get_context("spawn").Queue()
    start(own, 1, results)
    print(0, layers.FOUND, sys.argv[1:], __file__.endswith("launch.py"), sys.argv[0] == __file__, __package__)
    for _ in range(2):
        print(*results.get())
    sys.exit(3)
""",
    "engine/__main__.py": """
import multiprocessing
from . import layers
from engine.worker import start, work
results = multiprocessing.get_context("spawn").Queue()
start(work, 2, results)
print(0, layers.FOUND)
print(*results.get())
""",
    "engine/cooled.py": """
import multiprocessing, sys
from mooncake import pg
from mooncake.mooncake_ep_buffer import Buffer

def work(results):
    results.put(pg.__name__)

if __name__ == "__main__":
    print(0, pg.__name__, Buffer.__module__, sys.argv[1:])
    results = multiprocessing.get_context("spawn").Queue()
    child = multiprocessing.get_context("spawn").Process(target=work, args=(results,))
    child.start()
    print(1, results.get())
    child.join()
""",
    "engine/elastic.py": """
from nixl_ep import Buffer, topk_idx_t
from nixl_ep.buffer import Buffer as Same
import nixl_ep
print(nixl_ep.__name__, Buffer is Same, topk_idx_t)
""",
    # The way of vLLM's load_general_plugins.
    "plugged.py": """
import importlib.metadata, importlib.util, os, sys
FACE = sys.argv[1] if len(sys.argv) > 1 else "deep_ep"
for point in importlib.metadata.entry_points(group="vllm.general_plugins"):
    call = point.load()
    call()
    call()
print([each for each in ("torch", f"mep.{FACE}") if each in sys.modules], importlib.util.find_spec(FACE) is not None,
      os.environ.get("EP_DISABLE_GIN"))
from engine import layers
print(layers.FOUND)
""",
}


def declared():
    """The file that pip would write from pyproject.toml."""
    points = re.findall(r'^\[project\.entry-points\."([\w.]+)"\]\n((?:\S.*\n)+)', (ROOT / "pyproject.toml").read_text(),
                        re.MULTILINE)
    return "".join(f"[{group}]\n" + lines.replace('"', "") for group, lines in points)


class Started(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        metadata = "mep_comm-0.dist-info"
        files = {**FILES, f"{metadata}/METADATA": "Metadata-Version: 2.1\nName: mep-comm\nVersion: 0\n",
                 f"{metadata}/entry_points.txt": declared()}
        for name, text in files.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text)

    def lines(self, *command, expected=0, **variables):
        environment = {name: value for name, value in os.environ.items() if name not in ("MEP_DEEP_EP", "MEP_NIXL_EP")}
        path = os.pathsep.join([str(self.folder), environment["PYTHONPATH"]])
        done = subprocess.run([sys.executable, "-B", "-W", "error::DeprecationWarning:engine", "-W",
                               "error::ImportWarning", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              cwd=self.folder, env={**environment, **variables, "PYTHONPATH": path}, timeout=LIMIT_S,
                              check=False)
        self.assertEqual(done.returncode, expected, done.stdout[-4000:] + done.stderr[-8000:])
        self.errors = done.stderr
        return done.stdout.splitlines()

    def test_module(self):
        lines = self.lines("-m", "mep.deep_ep", "engine.launch", "--model", "-x", expected=3)
        self.assertEqual(lines, ["0 mep.deep_ep ['--model', '-x'] True True engine", "1 mep.deep_ep of the program",
                                 "2 mep.deep_ep of the program"])

    def test_without(self):
        lines = self.lines("-m", "engine.launch", expected=3, MEP_DEEP_EP="1")
        self.assertEqual([line.split()[1] for line in lines], ["nothing"] * 3)

    def test_mooncake(self):
        self.assertEqual(self.lines("-m", "mep.mooncake", "engine.cooled", "-x"),
                         ["0 mep.mooncake.pg mep.mooncake.ep ['-x']", "1 mep.mooncake.pg"])
        self.lines("-m", "mep.mooncake", expected=1)
        self.assertIn("usage: python -m mep.mooncake MODULE", self.errors)

    def test_nixl_ep(self):
        self.assertEqual(self.lines("-m", "mep.nixl_ep", "engine.elastic"), ["mep.nixl_ep True torch.int64"])
        lines = self.lines("plugged.py", "nixl_ep", MEP_NIXL_EP="1")
        self.assertEqual(lines, ["['torch', 'mep.nixl_ep'] True None", "nothing"])

    def test_package(self):
        self.assertEqual(self.lines("-m", "mep.deep_ep", "engine"), ["0 mep.deep_ep", "2 mep.deep_ep None"])

    def test_wrong_names(self):
        self.lines("-m", "mep.deep_ep", expected=1)
        self.assertIn("usage: python -m mep.deep_ep MODULE", self.errors)
        for name in ("no_such_engine", "engine.nothing"):
            self.lines("-m", "mep.deep_ep", name, expected=1)
            self.assertIn(f"there is no module {name} to run", self.errors)

    def test_plugin(self):
        for value, found in ((None, "nothing"), ("0", "nothing"), ("1", "mep.deep_ep")):
            lines = self.lines("plugged.py", **({} if value is None else {"MEP_DEEP_EP": value}))
            asked = found != "nothing"
            gin = "1" if asked else None
            self.assertEqual(lines, [f"{['torch', 'mep.deep_ep'] if asked else []} {asked} {gin}", found])
        lines = self.lines("plugged.py", MEP_DEEP_EP="1", EP_DISABLE_GIN="0")
        self.assertEqual(lines[0], "['torch', 'mep.deep_ep'] True 0")


if __name__ == "__main__":
    unittest.main()
