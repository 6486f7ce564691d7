"""Studies: one short file in, run directories, tables and a report out.

config                             TOML and presets, read and made an `Experiment`
rundir, records                    the run directory, and what it says
running, pool, runner              one run; several at once; those that are missing
comparing, sweeping, reproducing   methods × seeds; any keys; the papers' tables and figures
results, tables, formatting        what runs come to, for people
report                             the HTML page and its figures
"""
