"""Pictures of experiments, drawn by matplotlib.

| file | has |
|---|---|
| `canvas.py` | what all pictures share: a figure that needs no screen, and its file |
| `curves.py` | costs by epoch |
| `filters.py` | filters of a layer, each as a small image |
| `towers.py` | the parts of an image, and the halos of each |
"""
