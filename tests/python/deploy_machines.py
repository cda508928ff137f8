"""docs/five-machines.md on five machines that are network namespaces, and two more for PostgreSQL and Prometheus.

The configurations and the firewall are those that the guide prints, with this machine's paths in them; the proxy is the sample, changed
as the guide says. What systemd does there (users, credentials) is done by hand. As root: unshare --net --mount -- python deploy_machines.py COVAULT
"""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploy_processes import PATIENCE_S, ROOT, Process, run, say, until

GUIDE = ROOT / "docs/five-machines.md"
MACHINES = {
    "signer-1": "10.20.0.11",
    "signer-2": "10.20.0.12",
    "signer-3": "10.20.0.13",
    "orchestrator-1": "10.20.0.21",
    "orchestrator-2": "10.20.0.22",
    "db": "10.20.0.31",
    "prometheus": "10.20.0.40",
}
SIGNERS = [name for name in MACHINES if name.startswith("signer")]
ORCHESTRATORS = [name for name in MACHINES if name.startswith("orchestrator")]


def block(containing):
    """The indented block of the guide that has this line."""
    blocks = re.findall(r"(?:^ {4}.*\n|^\n)+", GUIDE.read_text(), re.MULTILINE)
    (found,) = [text for text in blocks if f"{containing}\n" in text]
    return "".join(line[4:] if line.strip() else "\n" for line in found.splitlines(keepends=True))


def private(path, text):
    path.write_text(text)
    path.chmod(0o600)


class Guide:
    def __init__(self, covault, folder):
        self.covault, self.folder = covault, Path(folder)
        self.folder.chmod(0o755)
        self.processes = []
        self.shared = {name: secrets.token_hex(32) for name in ("cluster-secret", "webhook-key")}
        self.passwords = self.folder / "bus"
        self.passwords.mkdir(mode=0o700)
        for name in (*SIGNERS, *ORCHESTRATORS, "operator"):
            private(self.passwords / f"{name}.password", secrets.token_hex(32))
        # Step 2, with what most systems have for a umask.
        own = self.passwords / "signer-1.password"
        own.unlink()
        self.follow("openssl rand -hex 32 > signer-1.password", self.passwords)
        self.follow("CA:FALSE -keyout bus.key -out bus.crt", self.passwords)
        for secret in (own, self.passwords / "bus.key"):
            assert secret.stat().st_mode & 0o777 == 0o600, f"others can read {secret.name} of step 2"

    def follow(self, containing, folder, machine=None, only=""):
        """The commands of the guide's block with this text, in this folder; on a machine, with its files."""
        commands = "".join(line for line in block(containing).splitlines(keepends=True) if line.startswith(only))
        wrap = (lambda *command: self.at(machine, *command)) if machine else (lambda *command: command)
        for old, new in (("/etc/covault/serve.toml", "/etc/covault/covault.toml"), ("/etc/covault", f"{self.folder}/{machine}")):
            commands = commands.replace(old, new)
        path = {**os.environ, "PATH": f"{Path(self.covault).parent}:{os.environ['PATH']}"}
        return run(wrap("sh", "-ec", "umask 022\n" + commands), cwd=folder, env=path)

    def connect(self):
        """The network: a switch, and a cable to each machine."""
        # The names of namespaces lie there; here they are this process's own.
        run(["mount", "-t", "tmpfs", "run", "/run"])
        run(["ip", "link", "add", "switch", "type", "bridge"])
        run(["ip", "link", "set", "switch", "up"])
        for number, (name, ip) in enumerate(MACHINES.items()):
            run(["ip", "netns", "add", name])
            run(["ip", "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", name])
            run(["ip", "link", "set", f"port{number}", "master", "switch", "up"])
            for words in (("addr", "add", f"{ip}/24", "dev", "eth0"), ("link", "set", "eth0", "up"), ("link", "set", "lo", "up")):
                run(["ip", "-n", name, *words])
        hosts = self.folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{MACHINES['db']} db.example\n")
        run(["mount", "--bind", hosts, "/etc/hosts"])

    def at(self, machine, *command):
        return ["ip", "netns", "exec", machine, *map(str, command)]

    def start(self, name, machine, *command, **options):
        self.processes.append(Process(name, self.at(machine, *command), self.folder, **options))

    def environment(self, machine):
        return {**os.environ, "CREDENTIALS_DIRECTORY": str(self.folder / machine / "credentials")}

    def configure(self, machine, text, more):
        for old, new in (*more, ("/etc/covault", f"{self.folder}/{machine}")):
            assert old in text or old == "/etc/covault", f"{old} is not in the guide"
            text = text.replace(old, new)
        text = text.replace("PASSWORD", (self.passwords / f"{machine}.password").read_text().strip())
        private(self.folder / machine / "covault.toml", text)

    def prepare(self, machine):
        for folder in ("", "credentials", "data"):
            (self.folder / machine / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copy(self.passwords / "bus.crt", self.folder / machine)

    def signer(self, name, pinned=None):
        """Step 3, and with the keys of the others step 6."""
        text = block("[signer]")
        if pinned:
            text = re.sub(r"orchestrators = \[\].*", f"orchestrators = {json.dumps(pinned[0])}", text)
            text = re.sub(r"peers = \[\].*", f"peers = {json.dumps(pinned[1])}", text)
        paths = [("/var/lib/covault-signer", f"{self.folder}/{name}/data"), ("10.20.0.11", MACHINES[name])]
        self.configure(name, text, [*paths, ("signer-1", name)])

    def make_signer(self, name):
        self.prepare(name)
        private(self.folder / name / "credentials/covault-passphrase", run(["openssl", "rand", "-base64", "24"]))
        policy = (ROOT / "deploy/policy.toml").read_text().replace("\nmessages = false\n", "\nmessages = true\n")
        (self.folder / name / "policy.toml").write_text(policy)
        self.signer(name)
        command = [self.covault, "node", "init", "--config", self.folder / name / "covault.toml"]
        run(self.at(name, *command), env=self.environment(name))

    def key_of(self, name):
        return self.folder / name / "data/identity.pub"

    def orchestrator(self, name):
        """Step 4."""
        self.prepare(name)
        credentials = self.folder / name / "credentials"
        for secret, text in {**self.shared, "store-url": self.store_url}.items():
            private(credentials / secret, text)
        self.configure(
            name,
            block("[serve]"),
            [
                ("/run/credentials/covault-orchestrator.service", str(credentials)),
                ("/var/lib/covault-orchestrator", f"{self.folder}/{name}/data"),
                ("10.20.0.21:9464", f"{MACHINES[name]}:9464"),
                ("rediss://orchestrator-1", f"rediss://{name}"),
                ('name = "orchestrator-1"', f'name = "{name}"'),
            ],
        )
        self.start_orchestrator(name)
        until(f"{name}'s identity", lambda: self.key_of(name).exists() or None, self.processes)

    def start_orchestrator(self, name):
        command = [self.covault, "serve", "--config", self.folder / name / "covault.toml"]
        self.start(name, name, *command, env=self.environment(name))

    def certificate(self, folder, names):
        """`key` and `crt` there, for a server with these names, signed by itself."""
        run(
            ["openssl", "req", "-batch", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc",
             "-subj", "/CN=server", "-addext", f"subjectAltName={names}", "-addext",
             "basicConstraints=critical,CA:FALSE", "-keyout", folder / "key", "-out", folder / "crt"]
        )  # fmt: skip

    def start_proxy(self, name):
        """The end of step 4."""
        folder = self.folder / f"{name}-proxy"
        folder.mkdir(mode=0o755)
        self.certificate(folder, f"IP:{MACHINES[name]}")
        text = (ROOT / "deploy/compose/nginx.conf").read_text()
        text, upstreams = re.subn(r"(?: +server orchestrator-\d:(808\d) .*\n)+", r"server 127.0.0.1:\1;\n", text)
        assert upstreams == 2, text
        for old, new in (
            ("/tmp/", f"{folder}/"),
            ("listen 8443 ssl http2;", "listen 443 ssl http2;"),
            ("/run/secrets/tls.crt", f"{folder}/crt"),
            ("/run/secrets/tls.key", f"{folder}/key"),
        ):
            assert old in text, old
            text = text.replace(old, new)
        (folder / "nginx.conf").write_text(text)
        self.start(f"{name}-proxy", name, "nginx", "-g", "daemon off;", "-c", folder / "nginx.conf")
        listens = lambda: self.reaches("prometheus", MACHINES[name], 443) or None  # noqa: E731
        until(f"{name}'s proxy", listens, self.processes)

    def copy_tokens(self):
        one, two = (self.folder / name / "data" for name in ORCHESTRATORS)
        for token in ("platform-token", "admin-token"):
            until(token, lambda: (one / token).exists() and (two / token).exists() or None, self.processes)
        (process,) = [it for it in self.processes if it.name == ORCHESTRATORS[1]]
        self.processes.remove(process)
        process.process.terminate()
        process.process.wait(PATIENCE_S)
        for token in ("platform-token", "admin-token"):
            shutil.copy(one / token, two / token)
        self.start_orchestrator(ORCHESTRATORS[1])

    def start_postgres(self):
        folder, binaries = self.folder / "db", next(Path("/usr/lib/postgresql").glob("*/bin"))
        folder.mkdir(mode=0o700)
        password = secrets.token_hex(32)
        private(folder / "password", password)
        self.certificate(folder, "DNS:db.example")
        shutil.copy(folder / "crt", self.folder / "db.crt")
        (self.folder / "db.crt").chmod(0o644)
        run(["chown", "-R", "postgres:postgres", folder])
        user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
        run(
            [*user, binaries / "initdb", "-D", folder / "data", "-U", "covault", "-E", "UTF8", "--locale", "C", "--no-sync",
             "--auth", "scram-sha-256", "--pwfile", folder / "password"]
        )  # fmt: skip
        with (folder / "data/pg_hba.conf").open("a") as rules:
            rules.write("hostssl all all 10.20.0.0/24 scram-sha-256\n")
        settings = [
            "--ssl=on", f"--ssl_cert_file={folder}/crt", f"--ssl_key_file={folder}/key",
            "--unix_socket_directories=", f"--listen_addresses={MACHINES['db']}",
        ]  # fmt: skip
        self.start("postgres", "db", *user, binaries / "postgres", "-D", folder / "data", *settings)
        ask = ["psql", "-h", MACHINES["db"], "-U", "covault", "-d", "postgres", "-c", "CREATE DATABASE covault"]

        def database():
            done = subprocess.run(
                self.at("db", *ask), env={**os.environ, "PGPASSWORD": password}, capture_output=True, text=True
            )
            return True if done.returncode == 0 or "already exists" in done.stderr else None

        until("PostgreSQL", database, self.processes)
        self.store_url = f"postgres://covault:{password}@db.example/covault?sslrootcert={self.folder}/db.crt"

    def start_redis(self):
        """Step 5."""
        for name in (*SIGNERS, *ORCHESTRATORS):
            shutil.copy(self.key_of(name), self.passwords.parent / f"{name}.pub")
        self.follow("--signer signer-1=signer-1.pub --signer signer-2=signer-2.pub --signer signer-3=signer-3.pub > users.acl", self.folder)
        text = (ROOT / "deploy/redis/covault-redis.conf").read_text() + block("tls-port 6379")
        for old, new in (("/etc/covault-redis/users.acl", f"{self.folder}/users.acl"), ("/etc/covault-redis/bus", f"{self.passwords}/bus")):
            assert old in text, f"{old} is not in the guide"
            text = text.replace(old, new)
        (self.folder / "redis.conf").write_text(text)
        self.start("redis", "orchestrator-1", "redis-server", self.folder / "redis.conf")
        for name in ORCHESTRATORS:
            self.protect(name, "orchestrator")

    def ceremony(self):
        """Step 6: everybody compares fingerprints; then each pins the keys of the others."""
        line = {name: " ".join(self.key_of(name).read_text().split()[:2]) for name in (*SIGNERS, *ORCHESTRATORS)}
        fingerprints = {run(["ssh-keygen", "-l", "-f", self.key_of(name)]).split()[1] for name in line}
        assert len(fingerprints) == 5, fingerprints
        for name in SIGNERS:
            self.signer(name, ([line[it] for it in ORCHESTRATORS], [line[it] for it in SIGNERS if it != name]))
            config = self.folder / name / "covault.toml"
            run(self.at(name, self.covault, "config", "check", "--role", "signer", config))
            self.protect(name, "signer")
            self.start(name, name, self.covault, "signer", "--config", config, env=self.environment(name))

    def protect(self, name, role):
        """Its firewall, loaded twice as an administrator may."""
        rules = self.folder / f"{name}.nft"
        rules.write_text(block(f"table inet {role} {{"))
        listed = []
        for _ in range(2):
            run(self.at(name, "nft", "-f", rules))
            listed.append(run(self.at(name, "nft", "list", "ruleset")))
        assert listed[0] == listed[1], f"a second load of {name}'s firewall changes it"

    def admin_command(self, *words):
        config = self.folder / "orchestrator-1/covault.toml"
        return self.at("orchestrator-1", self.covault, *words, "--config", config)

    def admin(self, *words):
        return run(self.admin_command(*words), env=self.environment("orchestrator-1"))

    def nodes(self):
        """What `node list` says; nothing while it cannot be asked."""
        command, environment = self.admin_command("node", "list", "--json"), self.environment("orchestrator-1")
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else {"wantToJoin": [], "nodes": []}

    def ready(self, name):
        program = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=5)"
        done = subprocess.run(self.at(name, sys.executable, "-c", program), capture_output=True)
        return True if done.returncode == 0 else None

    def first_vault(self):
        """Step 7."""
        for name in ORCHESTRATORS:
            until(f"{name} being ready", lambda: self.ready(name), self.processes)
        until("three nodes that want to join", lambda: len(self.nodes()["wantToJoin"]) == 3 or None, self.processes)
        admit = "covault node admit --config /etc/covault/serve.toml signer-1.pub --name signer-1"
        self.follow(admit, self.folder, "orchestrator-1", only="covault node admit")
        until("three live nodes", self.live, self.processes)
        keys = ",".join(str(self.key_of(name)) for name in SIGNERS)
        made = self.admin(
            "vault", "create", "--name", "treasury", "--threshold", "2", "--signers", keys, "--approvals", "automatic"
        )
        return made.strip().splitlines()[-1]

    def live(self):
        return True if sum(node["live"] for node in self.nodes()["nodes"]) == 3 else None

    def sign(self, name, vault):
        """A client's request, through this orchestrator's proxy."""
        token = self.folder / "orchestrator-1/data/platform-token"
        script = Path(__file__).with_name("deploy_processes.py")
        trusted = {**os.environ, "SSL_CERT_FILE": str(self.folder / f"{name}-proxy/crt")}
        # Where nothing else runs that a client has.
        command = self.at("prometheus", sys.executable, script, "sign", f"https://{MACHINES[name]}", token, vault)
        run(command, env=trusted)

    def reaches(self, machine, address, port):
        """Whether a connection is made within two seconds."""
        program = f"import socket; socket.create_connection(('{address}', {port}), 2)"
        done = subprocess.run(self.at(machine, sys.executable, "-c", program), capture_output=True)
        return done.returncode == 0

    def tunnels(self, one, other):
        """Whether a packet from one machine's port of WireGuard arrives at the other's."""
        program = "import socket, sys; it = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); it.bind(('', 51820)); "
        hear = program + "it.settimeout(20); print('bound', flush=True); it.recv(9)"
        send = program + f"it.sendto(b'hello', ('{MACHINES[other]}', 51820))"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(self.at(other, sys.executable, "-c", hear), **pipes) as hearer:
            hearer.stdout.readline()
            sent = subprocess.run(self.at(one, sys.executable, "-c", send), capture_output=True, text=True)
            assert sent.returncode == 0, f"{one} may not send to {other}'s tunnel: {sent.stderr}"
            hearer.communicate()
            return True if hearer.returncode == 0 else None

    def load_users(self, vault):
        """The commands of step 5 for later: the users anew, and who was refused. Then all sign again."""
        said = self.follow("ACL LOAD", self.folder, "orchestrator-1").split()
        # Nobody was refused.
        assert said == ["OK"], said
        plain = subprocess.run(
            self.at("orchestrator-1", "redis-cli", "-h", MACHINES["orchestrator-1"], "PING"), capture_output=True, text=True
        )
        assert "PONG" not in plain.stdout and "NOAUTH" not in plain.stdout, f"Redis answers without TLS: {plain.stdout}"
        for name in ORCHESTRATORS:
            self.sign(name, vault)

    def check_firewall(self):
        for signer in SIGNERS:
            bus = MACHINES["orchestrator-1"]
            until(f"{signer} to reach the bus", lambda: self.reaches(signer, bus, 6379) or None)
            until(f"Prometheus to reach {signer}", lambda: self.reaches("prometheus", MACHINES[signer], 9464) or None)
        for name in ORCHESTRATORS:
            until(f"Prometheus to reach {name}", lambda: self.reaches("prometheus", MACHINES[name], 9464) or None)
        # WireGuard's packets, from machine to machine.
        for one, other in (("signer-1", "signer-2"), ("signer-3", "orchestrator-1"), ("orchestrator-2", "signer-1")):
            until(f"a packet of {one}'s tunnel to reach {other}", lambda: self.tunnels(one, other))
        closed = (
            ("db", "orchestrator-1", 6379),
            ("db", "orchestrator-1", 9464),
            ("db", "orchestrator-2", 9464),
            ("signer-1", "db", 5432),
            ("signer-1", "orchestrator-2", 9464),
            ("signer-1", "signer-2", 9464),
            ("orchestrator-1", "signer-1", 9464),
            ("signer-2", "signer-1", 9464),
        )
        # At once, as each takes its two seconds.
        with ThreadPoolExecutor(len(closed)) as pool:
            answers = pool.map(lambda way: self.reaches(way[0], MACHINES[way[1]], way[2]), closed)
            wrong = [way for way, reached in zip(closed, answers) if reached]
        assert not wrong, f"a firewall lets through {wrong}"


def main(covault):
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="covault-machines-") as folder:
        guide = Guide(covault, folder)
        guide.connect()
        guide.start_postgres()
        for name in SIGNERS:
            guide.make_signer(name)
        for name in ORCHESTRATORS:
            guide.orchestrator(name)
        guide.copy_tokens()
        guide.start_redis()
        guide.ceremony()
        vault = guide.first_vault()
        for name in ORCHESTRATORS:
            guide.start_proxy(name)
            guide.sign(name, vault)
        guide.check_firewall()
        guide.load_users(vault)
        seconds = round(time.monotonic() - begun)
        say(f"docs/five-machines.md: five namespaces sign {seconds} s after the first command, over a bus with TLS; signers reach Redis alone, and nobody else Redis")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    finally:
        Process.end_all()
