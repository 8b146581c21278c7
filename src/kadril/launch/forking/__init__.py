"""Ranks that are forked from a process which has loaded what the program loads.

fork_client       the launcher's side: starts that process, and has ranks forked
fork_server       that process: loads modules, waits, forks
fork_fitness      whether its forks are sound
rank_setup        what a forked rank does before its program begins
main_program      run a program in this interpreter, as if it had just been started with it
visible_words     command line and variables of a process, as /proc shows them
"""
