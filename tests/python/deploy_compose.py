"""What deploy/compose.yaml describes, started without containers: deploy_compose.py ROOTFS

Every process of Covault with its command, secrets and read-only root as there, in a network that no other process of the
machine has; Redis, PostgreSQL, nginx and Prometheus of this machine with the files and arguments as there. As root:
unshare --net --mount -- python deploy_compose.py ROOTFS
"""

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import yaml
from deploy_dashboards import check_answers
from deploy_processes import PATIENCE_S, ROOT, Process, answers, call, first_signature, refused_payment, run, say, until

# Each container has an address of its own there; here all share one machine's.
ADDRESSES = {
    "orchestrator-1": "127.0.0.11",
    "orchestrator-2": "127.0.0.12",
    "signer-1": "127.0.0.21",
    "signer-2": "127.0.0.22",
    "signer-3": "127.0.0.23",
    "redis": "127.0.0.1",
    "postgres": "127.0.0.1",
    "prometheus": "127.0.0.1",
}
# These have files as Kubernetes mounts them (deploy/helm): root's, with modes that let others in the container read; and the
# orchestrator a volume that its group may write to (fsGroup).
AS_IN_KUBERNETES = ("orchestrator-2", "signer-3")
SIGNERS = [name for name in ADDRESSES if name.startswith("signer")]
PROMETHEUS = "http://127.0.0.1:9090"


class Compose:
    def __init__(self, rootfs, folder):
        self.rootfs, self.folder = Path(rootfs), Path(folder)
        self.folder.chmod(0o755)
        self.services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
        self.secrets = self.folder / "made"
        self.processes = []
        self.isolate()

    def isolate(self):
        run(["ip", "link", "set", "lo", "up"])
        hosts = "127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in ADDRESSES.items())
        (self.folder / "hosts").write_text(hosts)
        (self.rootfs / "etc/hosts").write_text(hosts)
        run(["mount", "--bind", self.folder / "hosts", "/etc/hosts"])

    def set_up(self):
        setup = ROOT / "deploy/compose/setup"
        # A chain that nobody serves: its metrics are there, and its requests wait.
        self.secrets.mkdir()
        (self.secrets / "chains.toml").write_text('\n[chains.evm.1]\nrpc = ["http://127.0.0.1:1", "http://127.0.0.1:2"]\n')
        run([setup, self.secrets])
        for name in SIGNERS:
            policy = self.secrets / f"{name}.policy.toml"
            text = policy.read_text()
            assert "\nmessages = false\n" in text
            policy.write_text(text.replace("\nmessages = false\n", "\nmessages = true\n"))
        before = self.made()
        run([setup, self.secrets])
        assert before == self.made(), "a second run of deploy/compose/setup changes something"
        for name in ADDRESSES:
            if name.startswith("orchestrator"):
                lines = before[f"{name}.toml"].splitlines()
                listens = [line for line in lines if line.startswith(("listen =", "grpc_listen ="))]
                assert len(listens) == 2 and "0.0.0.0" not in "".join(listens), f"{name} listens in every network"
        for name in self.services:
            self.mount(name)
        (self.folder / "all").mkdir()
        for name in ("tls.crt", "tls.key"):
            shutil.copy(self.secrets / name, self.folder / "all" / name)

    def made(self):
        return {path.name: path.read_text() for path in self.secrets.iterdir() if path.is_file()}

    def mount(self, name):
        """The folders of a container: its secrets by their names there, and its volume."""
        secrets, data = self.folder / name / "secrets", self.folder / name / "data"
        secrets.mkdir(parents=True)
        data.mkdir(mode=0o700)
        shutil.chown(data, 65532, 65532)
        for secret in self.services[name].get("secrets", []):
            source, target = self.secrets / secret["source"], secrets / secret["target"]
            shutil.copy2(source, target)
            shutil.chown(target, source.stat().st_uid, source.stat().st_gid)
            if name in AS_IN_KUBERNETES:
                shutil.chown(target, 0, 65532)
                target.chmod(0o444 if name in SIGNERS else 0o440)
        if name in AS_IN_KUBERNETES and name not in SIGNERS:
            shutil.chown(data, 0, 65532)
            data.chmod(0o2775)

    def inside(self, name, command):
        """A command as it runs in a container of Covault."""
        service, ip = self.services[name], ADDRESSES[name]
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and "user" not in service
        script = ROOT / "tests/support/read_only_root"
        # There every container has these ports to itself.
        environment = {"PATH": os.environ["PATH"], "CREDENTIALS_DIRECTORY": "/run/secrets"}
        if name.startswith("signer"):
            environment["COVAULT_SIGNER_METRICS_LISTEN"] = f"{ip}:9464"
        else:
            environment["COVAULT_SERVE_LISTEN"] = f"{ip}:8080"
            environment["COVAULT_SERVE_GRPC_LISTEN"] = f"{ip}:8081"
            environment["COVAULT_SERVE_METRICS_LISTEN"] = f"{ip}:9464"
            if name in AS_IN_KUBERNETES:
                environment["COVAULT_SERVE_DATA_DIR"] = "/data/orchestrator"
        line = [script, self.rootfs, self.folder / name / "data", self.folder / name / "secrets", *command]
        return line, environment

    def start(self, name, command, **options):
        self.processes.append(Process(name, command, self.folder, **options))

    def stop(self, name, by):
        (process,) = [one for one in self.processes if one.name == name]
        self.processes.remove(process)
        process.process.send_signal(by)
        process.process.wait(PATIENCE_S)

    def start_stores(self):
        redis = self.services["redis"]["command"]
        conf, users = ROOT / "deploy/redis/covault-redis.conf", self.folder / "redis/secrets/users.acl"
        there = {"/usr/local/etc/redis/redis.conf": conf, "/run/secrets/users.acl": users}
        self.start("redis", [there.get(word, word) for word in redis])

        data, binaries = self.folder / "pg", next(Path("/usr/lib/postgresql").glob("*/bin"))
        data.mkdir(mode=0o700)
        own = self.folder / "pg-files"
        own.mkdir(mode=0o700)
        for name in ("postgres.key", "postgres.crt", "postgres.password"):
            shutil.copy(self.secrets / name, own / name)
            shutil.chown(own / name, "postgres", "postgres")
        for path in (data, own):
            shutil.chown(path, "postgres", "postgres")
        as_postgres = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
        run(
            [*as_postgres, binaries / "initdb", "--pgdata", data, "--username", "covault", "--encoding", "UTF8",
             "--locale", "C", "--auth", "scram-sha-256", "--no-sync", "--pwfile", own / "postgres.password"]
        )  # fmt: skip
        options = self.services["postgres"]["entrypoint"][-1].split(" -c ")[1:]
        there = {
            "ssl_cert_file=/run/secrets/postgres.crt": f"ssl_cert_file={own}/postgres.crt",
            "ssl_key_file=/var/run/postgresql/server.key": f"ssl_key_file={own}/postgres.key",
        }
        assert set(there) < {option.strip() for option in options}, options
        settings = [f"--{there.get(option.strip(), option.strip())}" for option in options]
        settings += ["--unix_socket_directories=", "--listen_addresses=127.0.0.1", "--fsync=on"]
        self.start("postgres", [*as_postgres, binaries / "postgres", "-D", data, *settings])
        environment = {**os.environ, "PGPASSWORD": (own / "postgres.password").read_text().strip()}

        def database():
            command = ["psql", "-h", "127.0.0.1", "-U", "covault", "-d", "postgres", "-c", "CREATE DATABASE covault"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            return True if done.returncode == 0 or "already exists" in done.stderr else None

        until("PostgreSQL", database, self.processes)

    def start_covault(self):
        for name in ADDRESSES:
            if name in SIGNERS or name.startswith("orchestrator"):
                command = ["/usr/local/bin/covault", *self.services[name]["command"]]
                line, environment = self.inside(name, command)
                self.start(name, line, env=environment)
        for name in ADDRESSES:
            if name in SIGNERS or name.startswith("orchestrator"):
                until(f"{name} being healthy", lambda: self.healthy(name), self.processes)

    def healthy(self, name):
        test = self.services[name]["healthcheck"]["test"]
        assert test[0] == "CMD"
        line, environment = self.inside(name, test[1:])
        return True if subprocess.run(line, env=environment, capture_output=True).returncode == 0 else None

    def admin(self, *words):
        command = ["/usr/local/bin/covault", *words, "--config", "/run/secrets/serve.toml"]
        line, environment = self.inside("orchestrator-1", command)
        return run(line, env=environment)

    def live(self):
        nodes = json.loads(self.admin("node", "list", "--json"))["nodes"]
        return True if sum(node["live"] for node in nodes) == len(SIGNERS) else None

    def start_proxy(self):
        run(["mount", "--bind", self.folder / "all", self.fake_secrets()])
        # Its /tmp is the container's own.
        own = self.folder / "proxy-files"
        own.mkdir()
        conf = (ROOT / "deploy/compose/nginx.conf").read_text()
        (own / "nginx.conf").write_text(conf.replace("/tmp/", f"{own}/"))
        there = {"/etc/covault/nginx.conf": own / "nginx.conf"}
        self.start("proxy", [there.get(word, word) for word in self.services["proxy"]["entrypoint"]])
        until("the proxy", lambda: answers("http://127.0.0.1:8079/"), self.processes)

    @staticmethod
    def fake_secrets():
        """/run/secrets of this mount namespace."""
        run(["mount", "-t", "tmpfs", "-o", "mode=0755,size=1m", "run", "/run"])
        Path("/run/secrets").mkdir()
        return "/run/secrets"

    def check_logs(self):
        """No process writes a secret to its log."""
        public = (".pub", ".toml", ".crt", ".acl")
        secrets = {path.name: path.read_text().strip() for path in self.secrets.rglob("*") if path.is_file()}
        secrets = {name: text for name, text in secrets.items() if not name.endswith(public)}
        assert len(secrets) > 20, secrets.keys()
        for log in self.folder.glob("*.log"):
            text = log.read_text(errors="replace")
            for name, secret in secrets.items():
                assert secret not in text, f"{name} is in the log of {log.stem}"

    def start_prometheus(self):
        folder = self.folder / "prometheus-files"
        folder.mkdir()
        # As the volumes put them.
        text = (ROOT / "deploy/compose/prometheus.yaml").read_text()
        (folder / "prometheus.yaml").write_text(text.replace(": 15s", ": 1s"))
        shutil.copy(ROOT / "deploy/prometheus/alerts.yaml", folder / "alerts.yaml")
        self.start(
            "prometheus",
            ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
             "--web.listen-address=127.0.0.1:9090"],
        )  # fmt: skip
        until("Prometheus", lambda: answers(f"{PROMETHEUS}/-/ready"), self.processes)


def main(rootfs):
    with tempfile.TemporaryDirectory(prefix="covault-compose-") as folder:
        compose = Compose(rootfs, folder)
        compose.set_up()
        compose.start_stores()
        compose.start_covault()
        compose.start_prometheus()
        keys = [(compose.secrets / f"{name}.identity.pub").read_text().strip() for name in SIGNERS]
        compose.admin("node", "admit", *keys)
        until("three live signers", compose.live, compose.processes)
        vault = compose.admin(
            "vault", "create", "--name", "treasury", "--threshold", "2", "--signers", ",".join(keys),
            "--approvals", "automatic",
        ).strip().splitlines()[-1]  # fmt: skip
        token = (compose.secrets / "platform-token").read_text().strip()
        # The vault is in one of the two: the other one sends it the commands.
        for name in ("orchestrator-1", "orchestrator-2"):
            first_signature(f"http://{ADDRESSES[name]}:8080", token, vault)
        say("deploy/compose.yaml: healthy, and both orchestrators sign")

        password = (compose.secrets / "redis/operator.password").read_text()
        environment = {**os.environ, "REDISCLI_AUTH": password}
        refused = run(["redis-cli", "--user", "operator", "--json", "-3", "ACL", "LOG"], env=environment).strip()
        assert refused == "[]", f"Redis refused what the processes do: {refused}"

        compose.start_proxy()
        context = ssl.create_default_context(cafile=compose.secrets / "tls.crt")
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
        urllib.request.install_opener(opener)
        proxy = "https://localhost:8443"
        until("the proxy's orchestrators", lambda: answers(f"{proxy}/readyz"), compose.processes)
        first_signature(proxy, token, vault)
        admin = (compose.secrets / "admin-token").read_text().strip()
        hidden = urllib.request.Request(f"{proxy}/admin/v1/listVaults", b"{}", {"x-mtoken": admin})
        try:
            urllib.request.urlopen(hidden)
            sys.exit("tests/deploy: operators' calls come through the proxy")
        except urllib.error.HTTPError as refusal:
            assert refusal.code == 404, refusal.code
        health = grpc(compose, proxy, "grpc.health.v1.Health/Check")
        # status = SERVING.
        assert health == b"\0\0\0\0\2\x08\x01", health
        for hidden in ("covault.admin.v1.AdminAPI/ListVaults", "covault%2Eadmin.v1.AdminAPI/ListVaults"):
            assert b"404" in grpc(compose, proxy, hidden), hidden
        say("deploy/compose/nginx.conf: signs over TLS, and knows no operators' calls")

        for _ in range(5):
            first_signature(proxy, token, vault)
        # Answers other than 200, and refusals of signers.
        call(proxy, token, "createWallet", {"vaultUuid": vault})
        refused_payment(proxy, token, vault)
        until("all of them in Prometheus", all_up, compose.processes)
        check_answers(PROMETHEUS, ROOT / "deploy/grafana")

        # One of each may go, and nobody who calls the proxy notices.
        compose.stop("signer-1", signal.SIGKILL)
        first_signature(proxy, token, vault)
        compose.stop("orchestrator-1", signal.SIGTERM)
        for _ in range(4):
            first_signature(proxy, token, vault)
        say("deploy/compose.yaml: signs on without a signer and without an orchestrator")
        compose.check_logs()


def grpc(compose, proxy, method):
    """The answer to an empty message."""
    headers = [part for text in ("content-type: application/grpc", "te: trailers") for part in ("-H", text)]
    command = ["curl", "-sS", "--http2", "--cacert", compose.secrets / "tls.crt", *headers]
    command += ["--data-binary", "@-", f"{proxy}/{method}"]
    return subprocess.run(command, input=bytes(5), capture_output=True, check=True, timeout=PATIENCE_S).stdout


def found(expression):
    """The series that Prometheus finds; nothing for none."""
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{PROMETHEUS}/api/v1/query?{query}") as answer:
        return json.load(answer)["data"]["result"] or None


def all_up():
    up = found("sum(up)")
    return True if up and up[0]["value"][1] == "5" else None


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    finally:
        Process.end_all()
