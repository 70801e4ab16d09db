"""Soak: a real pair on a real broker and a real S3 server for hours, a handover every few minutes, and what it costs.

    samples    pure: what was measured of a process, and whether it is flat
    process    one look at a process, from /proc
    campaign   servers, writers, the pair; look, compare, sweep, again; the end
    __main__   `make soak MINUTES=120`

Writers, facts and judge are those of `chaos`, without any faults. docs/quality/soak.md says what is judged.
"""
