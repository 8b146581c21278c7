"""What is going on: `kadril doctor`, and the facts it looks at.

doctor         the command: look, test, print
finding        one fact, how bad it is, and what to do about it
versions       packages and libraries; what must be imported is, in a process of its own
transports     which of them can work here, and why not
system         cores, memory, limits, what the kernel offers
environment    variables and launcher
selftest       two real ranks: a sum, a mismatch, a death
plan_report    `kadril doctor --plan`: an all-reduce over several hosts, as text
machine        the facts about the machine by themselves; cgroup: limits of containers
forecast       the command `kadril forecast`; forecast_plot: its picture
quantities     bandwidths and durations as people write them
"""
