"""Ranks that are forked from a process which has loaded what the program loads.

fork_server       the launcher's side: starts that process, and has ranks forked
serving           that process: loads modules, waits, forks
forked_rank       what a forked rank does before its program begins
main_program      run a program in this interpreter, as if it had just been started with it
visible_words     command line and variables of a process, as /proc shows them
"""
