"""How fast training is, and how it grows with the number of ranks.

``scaling`` starts the ranks and judges what they report, ``worker`` is one rank of a measurement,
``clock`` times steps on a CPU or a GPU, ``summary`` is the arithmetic and the text.

Example
-------
>>> from boldcast.bench.summary import efficiency
>>> efficiency(100.0, 150.0, base=1, n=2)
0.75
"""
