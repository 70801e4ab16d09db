"""Fetching record batches, undecoded: what is asked for, and what an answer means.

`fetcher` keeps one request per broker on its way; `sessions`, `responses`, `assignment` and `leaders` are the pure
rules behind it. `empty_answers` says when an answer without records is believed, `answer_shares` how much may be in
flight. The result goes to `sink.read` as the values of `events`.
"""
