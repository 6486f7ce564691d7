"""Studies: one short file in, run directories, tables and a report out.

config                             TOML and presets, read and made an `Experiment`
rundir, records                    the run directory, and what it says
running, runner                    one run; those of a study that are missing, several at once
comparing, sweeping                methods × seeds; any keys
recipe, reproducing                the papers' tables and figures
outcome, results, formatting       a study's folder; its rows; numbers and tables for people
report                             the HTML page and its figures
"""
