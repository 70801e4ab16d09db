"""The Helm chart: value sets, what helm makes of them, and what must hold of it.

`make chart-test` renders with helm. What was rendered is kept in golden/, so that `make test` can judge it without helm
and a review sees what a change does. `make chart-golden` writes it anew.
"""
