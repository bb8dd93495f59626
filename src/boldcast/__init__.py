"""Train Mamba models that forecast fMRI BOLD signals, and leave a record that can be run again.

Layers, top to bottom; a module imports only from layers below its own, and folders on one line
never import each other::

    cli
    bench | selftest
    train
    score | model | data | parallel | launch
    record
    config | files
    errors

Everything from ``record`` down works without torch, so that a configuration is refused, or a
manifest verified, on a login node in milliseconds.
"""

__version__ = "0.1.0"
