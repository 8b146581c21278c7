"""Diagnosis: `kadril doctor`, `kadril ps`, `kadril dump`, `kadril forecast`, and what they look at.

doctor         the command: look, test, print
finding        one fact, how bad it is, and what to do about it
versions       packages and libraries; what must be imported is, in a process of its own
transports     which of them can work here, and why not
system         cores, memory, limits, what the kernel offers
environment    variables and launcher
selftest       two real ranks: a sum, a mismatch, a death; selftest_rank: what each of them runs
plan_report    `kadril doctor --plan`: an all-reduce over several hosts, as text
machine        the facts about the machine by themselves; cgroup: limits of containers
forecast       the command `kadril forecast`; forecast_plot: its picture
forecast_schedules   what a forecast compares, and for which network
ps_command     the commands `kadril ps` and, with dump_command, `kadril dump`
running_jobs   jobs of this user, found in /proc       rank_report   what each rank of one does
process_tree   processes, and which started which
flight_record  the last calls of a rank, as it writes them           rank_stacks   its stacks
quantities     bandwidths and durations as people write them
"""
