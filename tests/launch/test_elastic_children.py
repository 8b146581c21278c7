"""Processes that a rank of an elastic job forks: signals to them are theirs, not the rank's."""

from __future__ import annotations

import pytest
from launch_playground import Playground

PROGRAM = """
    import multiprocessing, os, signal, sys, threading
    import kadril
    from kadril.elastic import ObjectState, run

    forking = multiprocessing.get_context("fork")

    def one_child():
        child = forking.Process(target=signal.pause)
        child.start()
        child.terminate()
        child.join(20)
        code = child.exitcode
        child.kill()
        return code

    def child_of_a_thread():
        codes = []
        thread = threading.Thread(target=lambda: codes.append(one_child()))
        thread.start()
        thread.join()
        return codes[0]

    def pool():
        with forking.Pool(2) as workers:
            return sum(workers.map(abs, [-4, -11]))

    def handler_of_a_child():
        pid = os.fork()
        if pid == 0:
            os._exit(0 if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL else 1)
        return os.waitpid(pid, 0)[1] - signal.SIGTERM

    @run
    def train(state):
        for _ in range(5):
            print("code", globals()[sys.argv[1]](), flush=True)
        state.commit()  # would hear of a rank that leaves
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())

    kadril.init()
    train(ObjectState())
"""


@pytest.mark.parametrize(
    ("way", "code"),
    [("one_child", -15), ("child_of_a_thread", -15), ("pool", 15), ("handler_of_a_child", -15)],
)
def test_children_of_a_rank_end_by_sigterm(playground: Playground, way: str, code: int) -> None:
    """Children had the rank's handler: terminate() ended none, and told of a rank that leaves."""
    script = playground.write("train.py", PROGRAM)
    flags = ("-np", "1", "--min-np", "1", "--spares", "0", "--no-prefix")
    result = playground.start(*flags, script, way).finish(timeout=110.0)
    assert result.code == 0, result.err.decode()
    assert result.out.decode().splitlines() == [f"code {code}"] * 5
    assert not any("SIGTERM" in line or "generation" in line for line in result.report)
