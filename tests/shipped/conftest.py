"""A job's worker, with each Python that machines have."""

from tests.support.supervised_worker import worker_fixture

worker = worker_fixture()
