"""The arguments of a job in one object, under Horovod's names."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["_HorovodArgs"]


@dataclasses.dataclass
class _HorovodArgs:
    """Arguments of a job of one rank by default; each is described at the flag of its name."""

    num_proc: int = 1
    check_build: Any = None
    command: Any = None
    run_func: Any = None
    config_file: Any = None
    executable: Any = None
    output_filename: Any = None
    verbose: Any = None
    start_timeout: Any = None
    disable_cache: Any = None
    ssh_port: Any = None
    ssh_identity_file: Any = None
    nic: Any = None
    nics: Any = None
    hosts: Any = None
    hostfile: Any = None
    host_discovery_script: Any = None
    use_gloo: Any = None
    use_mpi: Any = None
    use_jsrun: Any = None
    mpi_args: Any = None
    tcp_flag: Any = None
    binding_args: Any = None
    mpi_threads_disable: Any = None
    gloo_timeout_seconds: Any = None
    num_nccl_streams: Any = None
    thread_affinity: Any = None
    fusion_threshold_mb: Any = None
    cycle_time_ms: Any = None
    cache_capacity: Any = None
    hierarchical_allreduce: Any = None
    hierarchical_allgather: Any = None
    torus_allreduce: Any = None
    autotune: Any = None
    autotune_log_file: Any = None
    autotune_warmup_samples: Any = None
    autotune_steps_per_sample: Any = None
    autotune_bayes_opt_max_samples: Any = None
    autotune_gaussian_process_noise: Any = None
    min_num_proc: Any = None
    max_num_proc: Any = None
    slots: Any = None
    elastic_timeout: Any = None
    reset_limit: Any = None
    cooldown_range: Any = None
    timeline_filename: Any = None
    timeline_mark_cycles: Any = None
    no_stall_check: Any = None
    stall_check_warning_time_seconds: Any = None
    stall_check_shutdown_time_seconds: Any = None
    log_level: Any = None
    log_with_timestamp: Any = None
    prefix_output_with_timestamp: Any = None
