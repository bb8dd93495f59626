"""The forecaster: a Mamba-2 network over volumes, with an optional linear skip path.

``scan`` holds the state-space recurrence in two forms, ``mixer`` the Mamba-2 block on either
kernel, ``spatial`` attention between neighbouring regions, ``skip`` the linear path, ``initial``
the initial weights, and ``forecaster`` puts them together.
"""
