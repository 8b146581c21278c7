"""`draw`: a picture of who owns which block, and which messages are sent.

| file | has |
|---|---|
| `draw.py` | the SVG |
| `picture.py` | what is drawn of a halo exchange or a repartition |
| `channel_picture.py` | what is drawn of a layer with split channels |
"""
