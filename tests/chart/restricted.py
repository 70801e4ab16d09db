"""What the Pod Security Standards ask of a pod in the profile "restricted", and a read-only root file system besides.

After https://kubernetes.io/docs/concepts/security/pod-security-standards/; `restricted` includes `baseline`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
_SELINUX_TYPES = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
_SAFE_SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
}


def violations(pod: dict[str, Any]) -> list[str]:
    """Return one line for each control that the pod's spec breaks."""
    return [*_of_pod(pod), *(line for each in _containers(pod) for line in _of_container(each, pod))]


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for kind in ("initContainers", "containers", "ephemeralContainers") for each in pod.get(kind, ())]


def _of_pod(pod: dict[str, Any]) -> Iterator[str]:
    context = pod.get("securityContext", {})
    yield from (f"{name} is set" for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))
    yield from _of_any_context("pod", context)
    yield from (f"sysctl {item['name']}" for item in context.get("sysctls", ()) if item["name"] not in _SAFE_SYSCTLS)
    for volume in pod.get("volumes", ()):
        yield from (f"volume {volume['name']} is of kind {kind}" for kind in volume.keys() - {"name"} - _VOLUMES)
    if not _containers(pod):
        yield "no container"


def _of_any_context(where: str, context: dict[str, Any]) -> Iterator[str]:
    selinux = context.get("seLinuxOptions", {})
    if selinux.get("type") not in _SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield f"{where}: seLinuxOptions"
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield f"{where}: hostProcess"
    if context.get("appArmorProfile", {}).get("type", "RuntimeDefault") not in {"RuntimeDefault", "Localhost"}:
        yield f"{where}: appArmorProfile"
    if context.get("seccompProfile", {}).get("type", "RuntimeDefault") not in {"RuntimeDefault", "Localhost"}:
        yield f"{where}: seccompProfile"
    if context.get("runAsUser") == 0:
        yield f"{where}: runAsUser 0"
    if context.get("runAsNonRoot") is False:
        yield f"{where}: runAsNonRoot false"


def _of_container(container: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    name, shared, context = container["name"], pod.get("securityContext", {}), container.get("securityContext", {})
    yield from _of_any_context(name, context)
    capabilities = context.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()) or set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
        yield f"{name}: capabilities are not dropped"
    if context.get("privileged"):
        yield f"{name}: privileged"
    if context.get("procMount", "Default") != "Default":
        yield f"{name}: procMount"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation is not false"
    if not context.get("runAsNonRoot", shared.get("runAsNonRoot")):
        yield f"{name}: runAsNonRoot is not true"
    if not context.get("seccompProfile", shared.get("seccompProfile")):
        yield f"{name}: no seccompProfile"
    yield from (f"{name}: hostPort" for port in container.get("ports", ()) if port.get("hostPort"))
    yield from (
        f"{name}: {probe} asks another host"
        for probe in ("livenessProbe", "readinessProbe", "startupProbe")
        for action in ("httpGet", "tcpSocket")
        if container.get(probe, {}).get(action, {}).get("host")
    )
    if context.get("readOnlyRootFilesystem") is not True:
        yield f"{name}: the root file system is not read-only"
