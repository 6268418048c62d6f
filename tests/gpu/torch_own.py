"""PyTorch's own distributed tests, those that its wheel brings, with NCCL as the backend.

Run with LD_PRELOAD of OxCCL's libnccl.so.2: `torch_own.py RANKS [NAME …]`. A test that does not end
within its time shows where each of its threads is, and fails.
"""

import faulthandler
import os
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


DEFAULT = ["test_ddp_model_diff_shape_across_ranks", "test_ddp_model_diff_num_params_across_ranks"]

if __name__ == "__main__":
    names = sys.argv[2:] or DEFAULT
    suite = unittest.TestSuite(Own(name) for name in names)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful())
