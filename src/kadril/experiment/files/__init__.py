"""Files of experiments: YAML that describes them, and checkpoints.

| file | has |
|---|---|
| `registry.py` | the classes that a file may name |
| `checked_call.py` | comparing the keys of a file with what a class takes |
| `yaml_file.py` | reading a file: objects, with the line of every mistake |
| `checkpoint_file.py` | the state of a model |
| `atomic_file.py` | files that are whole or not there |
"""
