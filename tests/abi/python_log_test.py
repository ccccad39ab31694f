#!/usr/bin/env python3
"""The log lines as calls of a Python function. Needs NumPy and MEP_LIBRARY. 1 s."""
import os
import unittest

from python_lifetime_test import run_program


class Log(unittest.TestCase):
    def test_a_function_takes_the_lines(self):
        os.environ["MEP_LOG"] = "warn"
        run_program(self, """
import logging, os, time
def lose_one():
    comms = mep.init_all(2)
    comms[1].abort()
    comms[0].wait_view(1)
    for comm in comms:
        try: comm.close()
        except mep.Error: pass
lines, threads = [], set()
def take(level, line):
    threads.add(threading.current_thread().name)
    lines.append((level, line))
    raise ValueError("printed, not raised")
quiet = os.dup(2)
os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
mep.set_log_callback(take)
lose_one()
mep.set_log_callback(None)
os.dup2(quiet, 2)
taken = len(lines)
assert any(level == logging.WARNING and "warn: rank 1 is out of the view" in line for level, line in lines), lines
assert threads == {"mep-log"} and not any("\\n" in line for _, line in lines), (threads, lines)

records = []
class Keep(logging.Handler):
    def emit(self, record): records.append(record)
logger = logging.getLogger("mep")
logger.addHandler(Keep())
logger.propagate = False
mep.set_log_callback(logger.log)
lose_one()
assert len(lines) == taken
# One that takes itself away; the one before has had all its lines.
mep.set_log_callback(lambda level, line: mep.set_log_callback(None))
assert any(record.levelno == logging.WARNING and "out of the view" in record.getMessage() for record in records)
lose_one()
while any(thread.name == "mep-log" for thread in threading.enumerate()): time.sleep(0.01)
child = os.fork()
if child == 0:
    mep.set_log_callback(None)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
# Left to the end of the program, and in the child of a fork.
mep.set_log_callback(take)
child = os.fork()
if child == 0:
    mep.set_log_callback(None)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
lose_one()
print("well")
""")


if __name__ == "__main__":
    unittest.main()
