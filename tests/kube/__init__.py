"""Chart, image and docs/kubernetes.md on a real Kubernetes, as a user walks: `make kube-test`, `python -m kube`.

`cluster/` has the scripts that build Kubernetes from Go modules and start two nodes in namespaces. A step does what the
docs say and checks what must be true then; the rows go to docs/quality/kube.md.
"""
