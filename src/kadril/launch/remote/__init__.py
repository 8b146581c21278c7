"""Ranks of another host, started by an agent that is reached over ssh.

agent             the program that starts ranks on a host and reports on them
remote_host       the launcher's side of an agent
frame_channel     frames between launcher and agent
ssh               how an agent is started, and why it was not
ssh_connection    whether the connection of an agent is dead
network_address   addresses and ports of a host
"""
