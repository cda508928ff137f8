"""What deploy/compose.yaml and the charts promise, read from what podman-compose and helm make of them.

    deploy_manifests.py compose CONFIG.yaml
    deploy_manifests.py chart orchestrator|signer RENDERED.yaml
"""

import re
import sys
from pathlib import Path

import yaml

SECRET_WORDS = re.compile(r"passw|secret|token|key", re.IGNORECASE)
COVAULT = ("orchestrator-1", "orchestrator-2", "signer-1", "signer-2", "signer-3")


def names(value):
    return set(value) if isinstance(value, (list, dict)) else set()


def compose(path):
    config = yaml.safe_load(Path(path).read_text())
    services, networks = config["services"], config["networks"]
    assert set(services) == {*COVAULT, "redis", "postgres", "proxy", "prometheus", "grafana"}, set(services)
    for name, service in services.items():
        assert service.get("read_only") is True, f"{name} can write to its root"
        assert service["cap_drop"] == ["ALL"], f"{name} has capabilities"
        assert "no-new-privileges:true" in service["security_opt"], name
        assert service["healthcheck"]["test"], f"{name} has no health check"
        for variable, value in (service.get("environment") or {}).items():
            file = str(value).startswith("/run/secrets/")
            assert file or not SECRET_WORDS.search(variable), f"{name}: {variable} is a secret in the environment"
        for secret in service.get("secrets", []):
            assert config["secrets"][secret["source"]]["file"].startswith("./compose/secrets/"), secret
    used = {secret["source"] for service in services.values() for secret in service.get("secrets", [])}
    assert used == set(config["secrets"]), used ^ set(config["secrets"])

    neighbours = {
        name: {other for other, it in services.items() if other != name and names(it["networks"]) & names(service["networks"])}
        for name, service in services.items()
    }  # fmt: skip
    for name in COVAULT[2:]:
        assert neighbours[name] == {"redis", "prometheus"}, f"{name} reaches {neighbours[name]}"
        assert all(networks[network]["internal"] for network in names(services[name]["networks"])), name
        assert "ports" not in services[name], name
        # One identity, passphrase and policy for each, and no other's.
        theirs = {secret["source"] for secret in services[name]["secrets"]}
        assert all(source.startswith(f"{name}.") for source in theirs), theirs
    # It is reached where no signer is: it listens on its address in that one network.
    watch = services["prometheus"]["networks"]["watch"]["ipv4_address"]
    assert f"--web.listen-address={watch}:9090" in services["prometheus"]["command"], watch
    assert neighbours["postgres"] == {"orchestrator-1", "orchestrator-2"}, neighbours["postgres"]
    outside = {name for name, it in services.items() if "ports" in it}
    assert outside == {"proxy", "grafana"}, outside
    assert all(port.startswith("127.0.0.1:") for port in services["grafana"]["ports"])
    ways_out = {name for name, it in networks.items() if not (it or {}).get("internal")}
    assert ways_out == {"chains", "public"}, ways_out
    print("tests/deploy: deploy/compose.yaml keeps signers apart, and has no secret outside files")


def chart(role, path):
    objects = [it for it in yaml.safe_load_all(Path(path).read_text()) if it]
    kinds = [it["kind"] for it in objects]
    assert "Secret" not in kinds and "ConfigMap" not in kinds, "a chart names secrets, and makes none"
    assert {"StatefulSet", "Service", "ServiceAccount", "NetworkPolicy"} <= set(kinds), kinds
    only = {kind: next(it for it in objects if it["kind"] == kind) for kind in kinds}
    workload = only["StatefulSet"]["spec"]
    pod = workload["template"]["spec"]
    labels = workload["template"]["metadata"]["labels"]
    for kind, selector in (
        ("StatefulSet", workload["selector"]["matchLabels"]),
        ("Service", only["Service"]["spec"]["selector"]),
        ("NetworkPolicy", only["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]),
        *((kind, it["spec"]["selector"]["matchLabels"]) for kind, it in only.items() if kind == "PodDisruptionBudget"),
    ):
        assert selector and selector.items() <= labels.items(), f"{kind} selects {selector}, and pods have {labels}"
    # What Kubernetes calls restricted, but for the container that prepares a volume.
    security = pod["securityContext"]
    assert security["runAsNonRoot"] and security["runAsUser"] == 65532, security
    assert security["seccompProfile"]["type"] == "RuntimeDefault", security
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"] + pod.get("initContainers", []):
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] is True, container["name"]
        assert own["capabilities"]["drop"] == ["ALL"], container["name"]
        assert container["resources"]["limits"]["memory"], container["name"]
    (covault,) = pod["containers"]
    assert "add" not in covault["securityContext"]["capabilities"]
    assert covault["livenessProbe"] and covault["startupProbe"], "probes"
    for variable in covault["env"]:
        assert not SECRET_WORDS.search(variable["name"].replace("IDENTITY", "")), variable
    policy = only["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    ports = sorted({port["port"] for rule in policy["egress"] for port in rule["ports"]})
    if role == "signer":
        assert workload["replicas"] == 1 and "fsGroup" not in security
        assert ports == [53, 6379], f"a signer reaches {ports}"
        assert all(port["port"] == "metrics" for rule in policy["ingress"] for port in rule["ports"])
    else:
        assert covault["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert ports == [53, 443, 5432, 6379], ports
    monitor = only.get("ServiceMonitor")
    if monitor:
        selected = monitor["spec"]["selector"]["matchLabels"].items()
        services = [it for it in objects if it["kind"] == "Service" and selected <= it["metadata"]["labels"].items()]
        assert len(services) == 1 and any(port["name"] == "metrics" for port in services[0]["spec"]["ports"]), services
        # The alerts expect these names.
        assert services[0]["metadata"]["labels"][monitor["spec"]["jobLabel"]] == f"covault-{role}"


if __name__ == "__main__":
    try:
        {"compose": compose, "chart": chart}[sys.argv[1]](*sys.argv[2:])
    except AssertionError as wrong:
        sys.exit(f"tests/deploy: {wrong}")
