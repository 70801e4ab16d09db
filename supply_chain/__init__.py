"""What goes into a release: locks and their audit, the list of parts, licences, a wheel that can be repeated.

For those who work on Tandem; no part of the wheel. Each module is a command of its own that make calls.
"""
