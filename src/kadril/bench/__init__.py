"""`kadril bench`: every collective over sizes, beside its peers, in one run.

    driver (no torch)                          jobs: processes of ranks, idle until told
    -----------------                          -----------------------------------------
    main        command line                   rank        reads a task, measures, answers
    options     what was asked for             timing      barrier, clock, call, clock
    peers       who is here, how it starts     workload    memory, inputs, and what must come out
    run         one run, from start to end     engines/    kadril, zero-copy, copy, gloo, MPI
    job         one job, seen by the driver
    rounds      who measures what, and when    in between: task (what to do), link (lines of JSON)
    turns       the order of a round           collectives: what is measured, what a size means
    figures     percentiles and ratios
    report      all of it, as JSON
    table, plot the report, to look at

Engines take turns on the same task, several rounds long, so that the noise of the machine meets all
alike. A job whose turn it is not sleeps in a read from its socket, outside of its engine.
"""
