"""The fault programme: real servers and real processes, faults by plan, and a checker that judges what was left.

    python -m chaos rows                     what there is
    python -m chaos 3 --seed 7               one row, by number or name
    python -m chaos 3 --topology cluster     the same in a cluster, or behind sentinels
    python -m chaos all                      every row once where it says, in 20 minutes; results, table (make chaos)
    python -m chaos soak --length 2h         row 31 for long (make chaos SOAK=2h)
    python -m chaos long --minutes 30        is memory flat, are sockets, tasks, owners and keys?
    python -m chaos crash-points             killed at every named point, at every occurrence
    python -m chaos mutants                  broken versions of the core that the checker must catch
    python -m chaos table                    write GUARANTEES.md from promises.toml and the results

How a run goes: `stage` starts a topology, a crew of workers and a feeder, lets the seeded `schedule` of a `scenario`
happen to them, heals, drains and collects; `checker` is a pure function from what was collected to a verdict.
"""
