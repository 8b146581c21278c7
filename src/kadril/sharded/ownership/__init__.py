"""Ownership: which rank owns which elements of which parameter, and the memory they lie in.

| file | what it holds |
|---|---|
| parameter_groups.py | what users give as parameters, read into groups of named ones |
| parameter_list.py | `ParameterList`: the parameters of a trainer, each once |
| group_options.py | the options of parameter groups |
| ownership_plan.py | `Plan`: buckets, and the pieces of all ranks; pure functions |
| partition_rules.py | rules that give whole parameters to ranks: a new rule goes here |
| shards.py | `Shards`: all buckets of a trainer, and the pieces that this rank owns |
| bucket.py | `Bucket`: parameters that are reduced at once, in one flat memory |
| gradient_memory.py | gradients on their way into a bucket: `.grad`, scale, layout, memory |
| memory_order.py | the order of a tensor's elements in memory |
| shared_memory.py | memory that all ranks of a host see |
| dedicated_transport.py | a transport that nobody else uses |
| live_trainers.py | no two trainers have the same parameter |

    what users give --parameter_groups--> ParameterList --ownership_plan--> Plan
    ParameterList and Plan --shards--> buckets in shared or private memory, pieces of this rank
"""
