"""A stand-in for CoreDNS: writes the names of Services and their pods for dnsmasq, every two seconds."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def host_lines(items: list[dict[str, Any]]) -> list[str]:
    """Return lines of a hosts file for Services and EndpointSlices; a headless Service has those of its pods."""
    headless: dict[tuple[str, str], bool] = {}
    lines = []
    for each in items:
        if each["kind"] == "Service":
            name, space = each["metadata"]["name"], each["metadata"]["namespace"]
            address = each["spec"].get("clusterIP")
            if address in (None, "None", ""):
                headless[space, name] = each["spec"].get("publishNotReadyAddresses", False)
            else:
                lines.append(f"{address} {name}.{space}.svc.cluster.local")
    for each in items:
        owner = each["metadata"].get("labels", {}).get("kubernetes.io/service-name")
        key = (each["metadata"]["namespace"], owner)
        if each["kind"] != "EndpointSlice" or key not in headless:
            continue
        full = f"{owner}.{key[0]}.svc.cluster.local"
        for end in each.get("endpoints") or ():
            if end["conditions"].get("ready") or headless[key]:
                pod = f" {end['hostname']}.{full}" if end.get("hostname") else ""
                lines += [f"{address} {full}{pod}" for address in end["addresses"]]
    return sorted(lines)


def main(kubectl: str, config: str, hosts: str, process_id: str) -> None:
    """Keeps the hosts file and tells dnsmasq of each change."""
    command = [kubectl, f"--kubeconfig={config}", "get", "services,endpointslices", "-A", "-o", "json"]
    while True:
        listed = subprocess.run(command, capture_output=True, check=False)
        if listed.returncode == 0:
            text = "\n".join(host_lines(json.loads(listed.stdout)["items"])) + "\n"
            if not Path(hosts).exists() or Path(hosts).read_text(encoding="ascii") != text:
                Path(hosts).write_text(text, encoding="ascii")
                os.kill(int(Path(process_id).read_text(encoding="ascii")), signal.SIGHUP)
        time.sleep(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
