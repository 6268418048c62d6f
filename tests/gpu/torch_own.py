"""PyTorch's own distributed tests, those that its wheel brings, with NCCL as the backend.

Run with LD_PRELOAD of OxCCL's libnccl.so.2: `torch_own.py RANKS [NAME …]`, without names all of them,
several at a time. Needs the package expecttest. A test that does not end within its time shows where
each of its threads is, and fails.
"""

import concurrent.futures
import faulthandler
import os
import subprocess
import sys
import tempfile
import unittest

LIMIT_S = 90


def prepare(ranks):
    """What PyTorch's test runner sets."""
    place = tempfile.mkdtemp(prefix="oxccl-torch-")
    for name in ("barrier", "test_dir", "init_dir"):
        os.mkdir(os.path.join(place, name))
    os.environ.update(BACKEND="nccl", WORLD_SIZE=str(ranks), TEMP_DIR=place)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29541")


if "TEMP_DIR" not in os.environ:
    prepare(sys.argv[1])
# Also in the processes that the tests start.
faulthandler.dump_traceback_later(LIMIT_S - 20, exit=False)

from torch.testing._internal.distributed.distributed_test import (  # noqa: E402
    DistributedTest,
    TestDistBackend,
)


class Own(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()


def alone(name):
    """Runs a test in a process that starts its ranks; returns what it says and whether it passed."""
    command = [sys.executable, __file__, os.environ["WORLD_SIZE"], name]
    environment = {key: value for key, value in os.environ.items() if key != "TEMP_DIR"}
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * LIMIT_S)
    except subprocess.TimeoutExpired as late:
        return f"{name}: {late}", False
    return f"{name}:\n{ended.stderr}", ended.returncode == 0


def run_all():
    """Runs all tests, two processors for each, and prints what failed; returns whether none did."""
    faulthandler.cancel_dump_traceback_later()
    names = unittest.TestLoader().getTestCaseNames(Own)
    with concurrent.futures.ThreadPoolExecutor(max(1, os.cpu_count() // 2)) as pool:
        outcomes = list(pool.map(alone, names))
    failed = [text for text, passed in outcomes if not passed]
    skipped = sum("OK (skipped" in text for text, passed in outcomes if passed)
    print("\n".join(failed))
    print(f"{len(names)} tests: {len(names) - len(failed) - skipped} passed, {skipped} skipped, {len(failed)} failed")
    return not failed


def run(names):
    suite = unittest.TestSuite(Own(name) for name in names)
    return unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful()


if __name__ == "__main__":
    sys.exit(not (run(sys.argv[2:]) if sys.argv[2:] else run_all()))
