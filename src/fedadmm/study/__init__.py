"""Studies: one short file in, run directories, tables and a report out.

config, parts, registry, loading   TOML checked against the parts' own dataclasses, built once
rundir, summary, recorded          the run directory: written, and read again
running, pool, grid                one run; several at once; those that are missing
comparing, sweeping, reproducing   methods × seeds; any keys; the papers' tables and figures
records, results, words            what a round says, what runs come to, numbers for people
report                             the HTML page and its figures
"""
