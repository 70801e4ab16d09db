"""Fetches record batches, undecoded: builds the requests and interprets the answers.

`fetcher` keeps one request per broker in flight; `responses`, `assignment` and `leaders` are its rules, without I/O.
`empty_answers` decides when an answer without records is accepted as proof, `answer_shares` how many bytes may be in
flight. The result goes to `sink.read` as the values of `events`.
"""
