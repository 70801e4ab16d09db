"""The `tandem` command as a file, which is what Spark is given to run on Kubernetes."""

from tandem.controller.cli.main import main

main()
