"""Metrics for Prometheus: `catalogue` says what there is, `picture` what is known, `collector` makes the page.

Nothing here asks the store or the brokers: a scrape shows what the instance knows anyway, and is answered while either
of them hangs. Labels hold names of topics and states, never what came from a message or an error.
"""
