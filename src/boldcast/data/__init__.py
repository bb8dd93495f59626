"""From files to windows: scans are read, checked, packed once, and cut by arithmetic.

``readers`` turns one file into numbers and the facts that the file itself holds; ``load`` adds
what only the scan list or a sidecar knows (orientation, repetition time, names); ``quality``
refuses what must not be trained on; ``store`` packs everything into one memory-mapped file;
``windows`` and ``order`` say which piece comes when, without storing a list of pieces.

Example
-------
>>> from boldcast.data.order import Order
>>> sorted(Order(n=5, seed=0).indices(0, 5).tolist())
[0, 1, 2, 3, 4]
"""
