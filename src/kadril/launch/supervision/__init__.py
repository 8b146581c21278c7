"""The event loop of a run: exits, output and signals of all ranks, wherever they are.

supervisor      the loop itself, with its deadlines
signal_inbox    signals to the launcher, as events
summary         who failed first and why; the exit code
output          the streams of all ranks, the sinks, and the back-pressure between them
log_files       files that keep what each rank wrote
line_stream     bytes of a rank -> whole lines with a prefix
sink            whole lines -> the launcher's own stdout or stderr, never blocking
"""
