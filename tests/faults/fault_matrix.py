"""The fault matrix: each fault that kadril is tested against, its bound, and its tests.

`test_fault_matrix.py` makes sure that the tests exist, and `page.py` of
`benchmarks/fault_comparison` writes the table of docs/promises.md by it.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MATRIX", "Fault"]


class Fault(NamedTuple):
    """One row of the matrix.

    Attributes:
        number: by which tests and pages refer to it.
        text: what happens.
        bound: what must hold, or the time it may take.
        tests: as "file::function", below `tests`.
        missing: what is not tested, and why; empty where all is.
    """

    number: str
    text: str
    bound: str
    tests: tuple[str, ...]
    missing: str = ""


DEATH = "faults/test_death.py::"
STOP = "faults/test_stop.py::"
ENDS = "faults/test_ends.py::"
LIMITS = "faults/test_limits.py::"
HOSTS = "ranks/test_several_hosts.py::"
CUTS = "faults/test_partition.py::"
MISMATCH = "ranks/test_conformance_mismatch.py::"
GROUPS = "ranks/test_conformance_groups.py::"
CLEANUP = "launch/test_launch_cleanup.py::"
SIGNALS = "launch/test_launch_signals.py::"
STRANGERS = "unit/world/test_hub_strangers.py::"
PORTS = "unit/transport/test_tcp_strangers.py::"
HUB = "unit/world/test_hub.py::"
OUTPUT = "launch/test_launch_output.py::"
HANDLES = "ranks/torch/test_hvd_handles.py::"
SESSION = "unit/world/test_world_session.py::"

MATRIX = (
    Fault(
        "F01",
        "a rank is killed in any phase of any collective",
        "`PeerLost` with its rank on every survivor, 1 s",
        (
            DEATH + "test_kill_at_every_point",
            DEATH + "test_kill_at_every_point_every_way",
            DEATH + "test_kill_at_200_random_times",
            DEATH + "test_a_killed_rank_that_gets_no_core_is_dead",
            "ranks/test_conformance_death.py::test_death_in_a_collective",
            "ranks/torch/test_hvd_faults.py::test_death_at_any_time",
        ),
    ),
    Fault(
        "F02",
        "rank 0, who holds the rendezvous and the store, is killed",
        "as F01; 2 s over gloo",
        (
            DEATH + "test_kill_at_every_point_every_way",
            "ranks/test_conformance_death.py::test_death_of_a_rank_that_is_waited_for",
            HUB + "test_rank_0_killed_after_the_meeting",
        ),
    ),
    Fault(
        "F03",
        "a rank is stopped for a while",
        "no error; reported as stopped",
        (STOP + "test_a_stopped_rank_is_named_and_may_go_on",),
    ),
    Fault(
        "F04",
        "a rank is stopped for good",
        "`Stalled`, state stopped, when patience ends",
        (
            STOP + "test_patience_on_a_stopped_rank_ends",
            "ranks/test_conformance_death.py::test_a_stopped_rank_is_late",
            "launch/test_elastic.py::test_a_stopped_rank_is_replaced",
        ),
    ),
    Fault(
        "F05",
        "a rank exits, raises, aborts or has a segmentation fault",
        "`PeerLost`, 1 s; the launcher names the first and why",
        (
            ENDS + "test_however_a_rank_ends_the_others_know",
            "launch/test_launch_failures.py::test_every_way_to_fail",
            "launch/test_launch_failures.py::test_survivors_of_a_killed_rank_are_not_the_cause",
        ),
    ),
    Fault(
        "F06",
        "an exception between collectives",
        "the others know within 1 s",
        (
            ENDS + "test_revoke_wakes_everybody",
            ENDS + "test_ctrl_c_gets_out_of_a_wait",
            LIMITS + "test_an_error_between_calls_is_known_to_the_others",
        ),
    ),
    Fault(
        "F07",
        "a rank holds the GIL for 70 s",
        "late, not dead; deaths of others are heard of meanwhile",
        (
            STOP + "test_a_held_gil_is_late_not_dead",
            STOP + "test_a_gil_held_for_70_seconds",
            STOP + "test_a_death_beside_a_held_gil",
        ),
    ),
    Fault(
        "F08",
        "a rank is slow at every step",
        "no error; the straggler is named",
        (
            STOP + "test_a_straggler_is_named_and_no_error",
            "ranks/torch/test_hvd_faults.py::test_a_rank_that_is_late_but_comes",
        ),
    ),
    Fault(
        "F09",
        "a link is cut, while ranks meet and in the middle of a call",
        "`PeerLost` on both sides within `KADRIL_LINK_TIMEOUT`; no two groups go on",
        (
            HOSTS + "test_a_link_that_is_down_is_told_on_both_sides",
            HOSTS + "test_a_one_way_cut_is_told_on_both_sides",
            HOSTS + "test_a_link_that_is_down_is_noticed_by_ranks_that_only_wait",
            CUTS + "test_a_link_that_is_down_while_ranks_meet",
            CUTS + "test_the_two_sides_of_a_cut_do_not_go_on_apart",
        ),
    ),
    Fault(
        "F10",
        "a link flaps three times for half a second",
        "`==`",
        (
            CUTS + "test_flaps_and_losses_change_no_bit",
            HOSTS + "test_a_flap_and_losses_change_no_bit",
        ),
    ),
    Fault(
        "F11",
        "5 to 40 % of packets are lost; 1 Mbit/s",
        "`==`, no false death; from 40 % on TCP itself may be silent for too long: `PeerLost`",
        (
            CUTS + "test_flaps_and_losses_change_no_bit",
            CUTS + "test_two_packets_of_five_lost",
            CUTS + "test_one_megabit",
            HOSTS + "test_a_slow_link_is_called_slow",
        ),
    ),
    Fault(
        "F12",
        "a connection is reset, silent, delayed or comes by single bytes",
        "`==`, `PeerLost` or `Stalled`",
        (
            "faults/test_proxy.py::test_bytes_one_by_one",
            "faults/test_proxy.py::test_a_pause_in_the_middle_of_a_message",
            "faults/test_proxy.py::test_a_reset_in_the_middle_of_a_message",
            "faults/test_proxy.py::test_a_connection_that_falls_silent",
            "faults/test_proxy.py::test_200_random_faults",
        ),
    ),
    Fault(
        "F13",
        "a rank runs out of memory, by its own limit or that of its control group",
        "`MemoryError` there, `Revoked` or `PeerLost` elsewhere, 1 s",
        (
            LIMITS + "test_no_memory_inside_a_call_over_connections",
            LIMITS + "test_collectives_of_shared_memory_need_no_memory",
            LIMITS + "test_no_memory_while_a_group_is_made",
            LIMITS + "test_a_rank_killed_by_the_limit_of_its_group",
            "ranks/test_shm_memory.py::test_no_room_names_bytes_and_remedy_and_hurts_nobody",
        ),
    ),
    Fault(
        "F14",
        "/dev/shm is full, small, absent, read-only or noexec",  # noqa: S108
        "works, or an error with the bytes or the remedy; never SIGBUS",
        ("faults/test_shared_directory.py::test_without_a_good_dev_shm",),
    ),
    Fault(
        "F15",
        "no descriptors or threads are left",
        "an error that names the limit",
        (
            LIMITS + "test_too_few_descriptors_to_join",
            LIMITS + "test_groups_of_connections_name_the_limit",
            LIMITS + "test_groups_of_shared_memory_need_no_descriptor",
            LIMITS + "test_an_engine_without_its_thread",
            "launch/test_launch_usage.py::test_too_few_descriptors_is_said_before_the_start",
        ),
    ),
    Fault(
        "F16",
        "all ranks, or the launcher, are killed 50 times over",
        "nothing is left; the next job starts",
        (
            DEATH + "test_50_crashes_leave_nothing",
            CLEANUP + "test_fifty_crashes_and_relaunches_leave_nothing",
        ),
        "there is no `doctor --clean`: nothing is left that it could list; reuse of a pid is not"
        " played, since peers are known by pidfd",
    ),
    Fault(
        "F17",
        "the launcher is killed",
        "everything is gone within 2 s",
        (
            CLEANUP + "test_sigkill_of_the_launcher_ends_everybody",
            CLEANUP + "test_ranks_die_with_the_launcher_even_without_a_guardian",
            "launch/test_launch_hosts.py::test_sigkill_of_the_launcher_leaves_nothing_on_any_host",
        ),
    ),
    Fault(
        "F18",
        "SIGTERM, SIGINT or SIGUSR1 to the launcher",
        "forwarded once; a second Ctrl-C kills; elastic ranks leave at the same step",
        (
            SIGNALS + "test_forwarded_once_to_every_rank",
            SIGNALS + "test_second_ctrl_c_kills_at_once",
            SIGNALS + "test_ranks_that_do_not_leave_are_killed_after_the_grace",
            "launch/test_elastic.py::test_sigterm_to_the_launcher_ends_all_ranks_at_one_step",
        ),
    ),
    Fault(
        "F19",
        "shapes differ",
        "`MismatchError` on all ranks; the next call works",
        (MISMATCH + "test_shapes_differ", "ranks/torch/test_hvd_mismatch.py::test_shapes"),
    ),
    Fault(
        "F20",
        "dtypes differ",
        "as F19",
        (MISMATCH + "test_dtypes_differ", "ranks/torch/test_hvd_mismatch.py::test_dtypes"),
    ),
    Fault(
        "F21",
        "reduction, root, scale or process set differ",
        "as F19",
        (
            MISMATCH + "test_ops_and_scales_differ",
            MISMATCH + "test_roots_differ",
            "ranks/torch/test_hvd_mismatch.py::test_process_sets_that_differ",
        ),
    ),
    Fault(
        "F22",
        "collectives differ",
        "as F19",
        (
            MISMATCH + "test_collectives_differ",
            "ranks/torch/test_hvd_deadlock.py::test_one_name_for_two_kinds",
        ),
    ),
    Fault(
        "F23",
        "two tensors of one shape in another order",
        "as F19 by names; named requests are put in order",
        (
            MISMATCH + "test_names_differ",
            MISMATCH + "test_two_tensors_in_another_order",
            "ranks/torch/test_hvd_names.py::test_every_rank_in_an_order_of_its_own",
        ),
    ),
    Fault(
        "F24",
        "a rank makes a call too few or too many",
        "`Stalled` with rank, state, the last call in common, and where that rank waits instead;"
        " named requests with both lines of code",
        (
            STOP + "test_a_rank_that_skips_a_call_is_named_late",
            STOP + "test_a_late_rank_is_told_with_the_call_and_line_that_it_waits_in",
            STOP + "test_a_rank_that_calls_once_too_often",
            "ranks/torch/test_hvd_unnamed.py::test_one_op_too_many_is_reported_with_its_call_site",
            "ranks/torch/test_hvd_unnamed.py::test_drift_is_reported_with_both_call_sites",
        ),
        "the last call in common and the waits are told on shared memory; over a network the error"
        " has the number of the call, and `kadril dump` the rest",
    ),
    Fault(
        "F25",
        "strided, empty, misaligned and very large arrays",
        "`==`",
        (
            "ranks/test_conformance_shapes.py::test_shapes",
            "ranks/test_conformance_shapes.py::test_misaligned_memory",
            "ranks/test_conformance_shapes.py::test_drawn_shapes_and_counts",
            "ranks/test_shm_memory.py::test_more_than_two_to_the_31_elements",
        ),
    ),
    Fault(
        "F26",
        "NaN, infinities, signed zeros, subnormals; all dtypes",
        "the same bits on every rank",
        (
            "ranks/test_conformance_reduce.py::test_special_values",
            "ranks/test_conformance_bits.py::test_same_bits_as_shared_memory",
        ),
    ),
    Fault(
        "F27",
        "the same inputs a thousand times",
        "the same bits",
        (
            "ranks/test_shm_same_bits.py::test_1000_runs_are_one",
            "ranks/test_conformance_reduce.py::test_additions_are_made_pairwise_by_rank",
        ),
    ),
    Fault(
        "F28",
        "init and shutdown twice, too early, too late, a hundred times",
        "typed errors; nothing left",
        (
            SESSION + "test_init_again",
            SESSION + "test_shutdown_again_and_without_init",
            SESSION + "test_a_question_before_init_and_after_shutdown",
            SESSION + "test_a_hundred_cycles_leave_nothing",
        ),
    ),
    Fault(
        "F29",
        "a fork after init",
        "`ForkedError` in the child at once; the parent unharmed",
        (
            ENDS + "test_a_forked_child_is_not_a_rank",
            GROUPS + "test_a_forked_child_is_no_rank",
            "ranks/torch/test_hvd_life.py::test_a_child_made_by_fork_has_no_engine",
        ),
    ),
    Fault(
        "F30",
        "four threads on one group",
        "0 wrong of 800",
        (
            "ranks/test_shm_groups.py::test_threads_on_one_group_take_turns",
            "ranks/test_shm_groups.py::test_threads_on_groups_of_their_own",
            GROUPS + "test_threads_are_served_one_after_the_other",
        ),
    ),
    Fault(
        "F31",
        "handles waited for in any order, twice, or never",
        "right, or a typed error",
        (
            HANDLES + "test_handles_in_any_order",
            HANDLES + "test_synchronize_again_gives_nothing",
            HANDLES + "test_a_handle_that_is_never_synchronized_does_no_harm",
            HANDLES + "test_a_tensor_that_nobody_keeps_stays_alive",
        ),
    ),
    Fault(
        "F32",
        "ten thousand small tensors in a step",
        "1 s",
        (
            "faults/test_many.py::test_ten_thousand_small_tensors",
            "faults/test_many.py::test_a_thousand_small_tensors",
        ),
    ),
    Fault(
        "F33",
        "200 groups; process sets made and removed a thousand times",
        "no thread, at most 2 descriptors each, no leak",
        (
            "faults/test_many.py::test_process_sets_come_and_go",
            "ranks/test_shm_groups.py::test_200_groups_cost_neither_threads_nor_descriptors",
            "ranks/test_shm_groups.py::test_making_and_closing_groups_leaks_no_memory",
        ),
    ),
    Fault(
        "F34",
        "a wrong secret, none, a replay, another job, generation or user",
        "refused before anything is read; one log line for each source",
        (
            STRANGERS + "test_a_wrong_secret",
            STRANGERS + "test_a_replayed_claim",
            STRANGERS + "test_another_job_with_the_same_secret",
            STRANGERS + "test_another_user",
            STRANGERS + "test_one_log_line_for_each_source",
            PORTS + "test_strangers_at_the_port_of_a_host_are_dropped",
            PORTS + "test_a_claim_that_does_not_fit_is_told_why",
            HUB + "test_a_rank_that_is_behind_is_refused_and_harms_nobody",
        ),
    ),
    Fault(
        "F35",
        "a thousand idle strangers, and garbage, at every port",
        "join in 1 s; memory flat",
        (
            STRANGERS + "test_a_thousand_idle_connections",
            STRANGERS + "test_garbage_is_dropped_at_once",
            STRANGERS + "test_a_stranger_has_seconds_for_a_proof",
            PORTS + "test_a_thousand_idle_strangers_and_garbage_at_the_rendezvous",
            PORTS + "test_a_thousand_idle_strangers_and_garbage_at_the_port_of_a_host",
            "fuzz/test_parsers.py::test_spoilt_inputs",
        ),
        "the store of torch, which `c10d` uses, has neither proof nor limits: see SECURITY.md",
    ),
    Fault(
        "F36",
        "ranks that contradict each other: size, number, version",
        "`RendezvousError` with both sides on all ranks",
        (
            HUB + "test_sizes_that_differ",
            HUB + "test_a_rank_that_two_processes_claim",
            HUB + "test_a_rank_that_does_not_exist",
            HUB + "test_another_version_of_the_protocol",
        ),
    ),
    Fault(
        "F37",
        "twenty jobs of one user at the same time",
        "no collision",
        (CLEANUP + "test_twenty_launchers_at_the_same_time", HUB + "test_twenty_jobs_at_once"),
    ),
    Fault(
        "F38",
        "the clock jumps; the machine sleeps",
        "no timeout follows the wall clock",
        (
            "faults/test_clock.py::test_no_timeout_follows_the_wall_clock",
            "faults/test_clock.py::test_no_timeout_of_the_core_follows_the_wall_clock",
            "faults/test_clock.py::test_a_machine_that_slept",
        ),
        "no jump is played: no namespace has a wall clock of its own, and a test must not set the"
        " machine's",
    ),
    Fault(
        "F39",
        "elastic jobs: ranks die, also during recovery and commits; jobs shrink and grow",
        "the parameters of a run without faults, or the loss of one commit",
        (
            "launch/test_elastic_scripts.py::test_scripts",
            "launch/test_elastic_scripts.py::test_a_sharded_state_is_shared_out_anew",
            "launch/test_elastic.py::test_a_rank_dies_while_the_others_recover",
            "launch/test_elastic.py::test_a_job_shrinks_to_one",
        ),
    ),
    Fault(
        "F40",
        "checkpoints: a kill during a save, a full disk, another number of ranks, a flipped bit",
        "the last one can be loaded; `==`",
        (
            "ranks/sharded/test_checkpoint.py::test_who_is_killed_leaves_a_checkpoint",
            "ranks/sharded/test_checkpoint.py::test_a_save_that_fails_leaves_the_last_one",
            "ranks/sharded/test_checkpoint.py::test_training_goes_on_at_any_number_of_ranks",
            "ranks/sharded/test_checkpoint.py::test_what_is_missing_damaged_or_of_another_model_is_refused",
        ),
    ),
    Fault(
        "F41",
        "16 ranks on 2 cores; ranks with half a core",
        "no false death",
        (
            "faults/test_crowd.py::test_sixteen_ranks_share_the_cores",
            "faults/test_crowd.py::test_eight_ranks_share_the_cores",
            "faults/test_crowd.py::test_ranks_with_half_a_core",
        ),
    ),
    Fault(
        "F42",
        "a million mixed collectives",
        "0 errors; memory and descriptors flat",
        ("faults/test_crowd.py::test_a_long_run_stays_flat",),
    ),
    Fault(
        "F43",
        "the adjoint of every operation and layer",
        "`==`",
        (
            "adjoint/test_check_adjoint.py",
            "ranks/ops/test_moves.py",
            "ranks/nn/test_primitives.py",
        ),
    ),
    Fault(
        "F44",
        "a rank prints a million lines, a line of 10 MB, strange bytes, no last newline",
        "no deadlock; the order of each rank is kept",
        (
            "faults/test_program_end.py::test_a_million_lines_of_each_rank",
            OUTPUT + "test_lines_stay_whole_and_in_order",
            OUTPUT + "test_huge_line_strange_bytes_and_no_last_newline",
            OUTPUT + "test_slow_reader_holds_the_ranks_back_and_not_the_signals",
        ),
    ),
    Fault(
        "F45",
        "a program ends with a collective pending",
        "2 s; no abort, no wall of warnings",
        (
            "faults/test_program_end.py::test_a_program_ends_while_its_thread_waits",
            ENDS + "test_a_pending_collective_does_not_hold_up_the_end",
            "ranks/torch/test_hvd_faults.py::test_a_program_ends_with_ops_in_flight",
            "unit/world/test_world_launchers.py::test_leaving_without_shutdown_and_without_a_peer",
        ),
    ),
)
