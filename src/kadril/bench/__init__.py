"""`kadril bench`: every collective over sizes, beside its peers, in one run.

    driver (no torch)                          crews: processes of ranks, idle until told
    -----------------                          ------------------------------------------
    main        command line                   rank        reads a task, measures, answers
    options     what was asked for             timing      barrier, clock, call, clock
    peers       who is here, how it starts     workload    memory, inputs, and what must come out
    run, idle   one run, from start to end     engines/    kadril, zero-copy, copy, gloo, MPI
    crew        one crew, seen by the driver
    rounds      who measures what, and when    in between: task (what to do), link (lines of JSON)
    figures     percentiles and ratios
    report      all of it, as JSON
    table, plot the report, to look at

Engines take turns on the same task, several rounds long, so that the noise of the machine meets all
alike. A crew whose turn it is not sleeps in a read from its socket, outside of its engine.
"""
