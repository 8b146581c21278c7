"""The harness that programs in `benchmarks/` share; `kadril bench` does not need it.

    claim          measure, write results, compare with the bars: the main program of a run.py
    check          read results, compare with the bars: the main program of a check_bars.py
    bars           a bar, and whether it was reached
    results        a results file: series of samples, machine, load, versions; as JSON and Markdown
    program        run a program on ranks, and read what each of them found out
    turns          the rounds, in which everybody has a turn
    setting        settings that take turns in the same processes
    side_by_side   settings that take turns in processes of their own
    idle           processor time of a world that has nothing to do
    peak_memory    how far memory rises during a call
    memory_trace   memory over the phases of a step
    memory_plot    a picture of it

Programs find this package by their folder's parent: a `run.py` or a `check_bars.py` puts it on the
path itself, and `program` puts it on the path of the ranks that it starts.
"""
