"""Judge a forecaster: acceptance gates, the forecasts to beat, scores, and a page that shows them.

Everything here is numpy on arrays and files: no torch, no knowledge of how a model is built. The
order of the stages is the order of the modules: ``gates`` (is the run good enough), ``baselines``
and ``var`` (what it must beat), ``metrics`` (by how much), ``report`` (one page for a human).

Example
-------
>>> from boldcast.score.gates import beats_trivial
>>> beats_trivial(0.55, {"zero": 1.0, "persistence": 0.8})
True
"""
