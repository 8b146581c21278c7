"""Flags and files by which users of `kadril run` ask for more than the program's own options.

host_options    flags about hosts
elastic_options flags about jobs that outlive their ranks
horovod_flags   horovodrun's flags: what each sets, why it has no effect, why it is refused
config_file     the same from a YAML file
build_report    `--check-build`
dry_run         `--dry-run`
"""
