"""A run's record in the forms that other tools read: RO-Crate, in-toto, DataLad.

Each form says less than the manifest, which goes along or is named by its digest. Nothing of a
record is executed or followed: what becomes a path or a command in another tool is checked or
quoted here, because that tool will trust it.

Example
-------
>>> from boldcast.record.export.in_toto import statement
>>> from boldcast.record.export.datalad import commit_message
>>> from boldcast.record.export.ro_crate import write_crate
"""
