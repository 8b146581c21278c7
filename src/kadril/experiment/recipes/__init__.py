"""Skeletons that `kadril experiment new` writes; `@NAME@` is the class, `@FILE@` the file.

| file | has |
|---|---|
| `dataset.py.txt`, `dataset.yaml.txt` | a dataset, and an experiment on it |
| `layer.py.txt`, `layer.yaml.txt` | a layer, its twin, and an experiment with them |
| `model.py.txt`, `model.yaml.txt` | a model, its twin, and an experiment with them |
"""
