"""What a run leaves behind so that it can be repeated, checked and explained.

`trace` holds the numbers of every step, `events` everything that has a time, `provenance` and
`topology` what was found on the machine, `manifest` the sealed record of all of it, `verify` the
check that nothing has changed since. Nothing here imports torch.

Example
-------
>>> from boldcast.record.trace import TraceWriter
>>> from boldcast.record.manifest import open_manifest, seal
>>> from boldcast.record.verify import verify
"""
