"""Commands beside `kadril run` that place ranks, start them or list options.

rank_file_command  `kadril rankfile`
mpirun_command     `kadril mpirun`
mpi_flavour        Open MPI 4 or 5, or Hydra
ddlrun_command     `kadril ddlrun`
experiment_command `kadril experiment`
new_recipe         `kadril experiment new`
option_table       `kadril env`
"""
