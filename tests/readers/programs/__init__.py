"""The applications: programs that run in environments of their own, where nothing of Tandem is installed.

Each is started with one argument, the JSON of a `job.Job`, and writes lines of results, see `job.tell`. A program may
wait for ever: the campaign ends it, and that is what it then says in the table.
"""
