"""Ranks of one host: how they are started, and what is cleaned up after them.

program           which Python runs the program, and whether it is there
rank_environment  the variables that all ranks get
job               private directory, secret and rendezvous socket of one job on one host
guardian          a tiny process that cleans up when the launcher is killed
leftovers         find and end what is left of a job (the guardian's program)
rank_host         a host as the supervisor sees it
local_host        ranks of this host
rank_process      one rank: how it is started, signalled and how it ended
parent_death      a process that ends when the one that started it ends
rank_pipes        what ranks of a host write, read as long as there is room for it
stall_watch       tells a person when the ranks of this host do not move
watched_program   a program that starts ranks by itself, such as mpirun, and a watch over these
"""
