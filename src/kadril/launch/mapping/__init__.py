"""Mapping of ranks to hosts, and to processors there. Pure data, nothing is started.

hosts           `--hosts` and `--hostfile`
host_lookup     whether a name leads to this machine
dimensions      4x3 in the words of DDL
rank_file       rank files: reading and writing
placement       the host of each rank
cpu_topology    sockets and cores of a host
binding         the processors of each rank
"""
