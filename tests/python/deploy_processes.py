"""What deploy/ starts, started: covault (of the path in COVAULT) with a real Redis. Run by tests/deploy.

    deploy_processes.py acl        three signers, `covault serve` and the users of `covault redis-acl`, in a network of its own
    deploy_processes.py image DIR  the rootfs of deploy/image, under chroot as uid 65532 with a read-only root
    deploy_processes.py sign URL TOKEN-FILE VAULT   a first signature of a service that runs
"""

import base64
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# How long anything may take on a busy machine. What is waited for is asked for again and again.
PATIENCE_S = 180


def say(text):
    print(f"tests/deploy: {text}", flush=True)


def until(what, ask, alive=()):
    """What `ask` answers as soon as that is something."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for process in alive:
            process.check()
        if (answer := ask()) is not None:
            return answer
        time.sleep(0.1)
    for process in alive:
        print(process.tail(), file=sys.stderr)
    sys.exit(f"tests/deploy: waited {PATIENCE_S} s for {what}")


class Process:
    """One that is ended with the test. Its output is in a file."""

    running = []

    def __init__(self, name, command, folder, **options):
        self.name, self.log = name, Path(folder) / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options
            )
        Process.running.append(self)

    def tail(self):
        return f"--- {self.name}\n{self.log.read_text(errors='replace')[-3000:]}"

    def check(self):
        if self.process.poll() is not None:
            sys.exit(f"tests/deploy: {self.name} ended with {self.process.returncode}\n{self.tail()}")

    @staticmethod
    def end_all():
        for one in reversed(Process.running):
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGKILL)
            one.process.wait()


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"tests/deploy: {command} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def call(base, token, operation, body):
    """The answer of an operation of the API, whatever its status."""
    request = urllib.request.Request(
        f"{base}/v1/{operation}",
        json.dumps(body).encode(),
        {"content-type": "application/json", "x-mtoken": token},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refusal:
        body = refusal.read()
        try:
            return json.loads(body)
        except ValueError:
            sys.exit(f"tests/deploy: {operation}: {refusal.code} {body[:200]}")


def wallet(base, token, vault):
    made = call(base, token, "createWallet", {"vaultUuid": vault, "networkType": "NETWORK_TYPE_EVM"})
    return (made.get("details") or sys.exit(f"tests/deploy: createWallet: {made}"))["address"]


def refused_payment(base, token, vault):
    """A payment that no signer's policy allows, to the end."""
    payment = {"chainId": "1", "from": wallet(base, token, vault), "to": "0x" + "11" * 20, "value": "1", "nonce": "0",
               "gasFee": {"maxFee": "10", "maxPriorityFee": "1", "gasLimit": "21000"}}  # fmt: skip
    asked = call(base, token, "createSigningRequest", {"broadcastTx": False, "evmSendNative": payment})
    request = asked.get("signingRequest") or sys.exit(f"tests/deploy: createSigningRequest: {asked}")
    done = call(base, token, "executeSigningRequests", {"uuid": request["uuid"]})
    assert done.get("error") and not done.get("signatures"), done


def first_signature(base, token, vault):
    """A wallet, a message, its signature: as the README's first example."""
    address = wallet(base, token, vault)
    content = base64.b64encode(b"hello").decode()
    asked = call(
        base, token, "createSigningRequest", {"evmMessage": {"chainId": 1, "from": address, "content": content}}
    )
    request = asked.get("signingRequest") or sys.exit(f"tests/deploy: createSigningRequest: {asked}")
    done = call(base, token, "executeSigningRequests", {"uuid": request["uuid"]})
    if done.get("error") or not done["signatures"]["signatures"]:
        sys.exit(f"tests/deploy: executeSigningRequests: {done}")
    return done["signatures"]["signatures"][0]


class Cluster:
    """Three signers and an orchestrator of deploy/*.toml, each with its own user of a Redis that has only these.

    In a network of its own: the ports are those of the samples, and nobody else's.
    """

    SIGNERS = ("signer-1", "signer-2", "signer-3")
    ORCHESTRATOR = "orchestrator-1"
    BASE = "http://127.0.0.1:8080"

    def __init__(self, covault, folder):
        self.covault, self.folder = covault, Path(folder)
        self.passwords = self.folder / "passwords"
        self.passwords.mkdir(mode=0o700)
        for name in (*self.SIGNERS, self.ORCHESTRATOR, "operator"):
            self.secret(self.passwords / f"{name}.password", secrets.token_hex(32))
        self.secret(self.folder / "cluster-secret", secrets.token_hex(32))
        policy = (ROOT / "deploy/policy.toml").read_text()
        assert "\nmessages = false\n" in policy
        (self.folder / "policy.toml").write_text(policy.replace("\nmessages = false\n", "\nmessages = true\n"))
        for name in self.SIGNERS:
            self.configure(name, name)
        self.configure("serve", self.ORCHESTRATOR)

    @staticmethod
    def secret(path, text):
        path.write_text(text)
        path.chmod(0o600)

    def password(self, user):
        return (self.passwords / f"{user}.password").read_text()

    def configure(self, sample, user):
        text = (ROOT / f"deploy/{sample}.toml").read_text()
        url = f"redis://{user}:{self.password(user)}@127.0.0.1:6379"
        for old, new in (
            ("redis://127.0.0.1:6379", url),
            ("../data/", f"{self.folder}/data/"),
        ):
            text = text.replace(old, new)
        if sample == "serve":
            text += f'\n[cluster]\nsecret_file = "{self.folder}/cluster-secret"\n'
        self.secret(self.folder / f"{sample}.toml", text)

    def identity(self, name):
        folder = "orchestrator" if name == self.ORCHESTRATOR else name
        return self.folder / "data" / folder / "identity.pub"

    def start_processes(self):
        """Before there is a Redis: its users are made of the identities that these write."""
        names = (("serve", "serve"), *((name, "signer") for name in self.SIGNERS))
        self.processes = [
            Process(name, [self.covault, role, "--config", f"{name}.toml"], self.folder) for name, role in names
        ]
        for name in (self.ORCHESTRATOR, *self.SIGNERS):
            path = self.identity(name)
            until(f"{path}", lambda: path.exists() and path.read_text() or None, self.processes)

    def users(self):
        """Before there is a bus: those of the identities that are named. The script without the program says the same."""
        names = (self.ORCHESTRATOR, *self.SIGNERS)
        command = [self.covault, "redis-acl", "--passwords", self.passwords]
        for name in names:
            kind = "--orchestrator" if name == self.ORCHESTRATOR else "--signer"
            command += [kind, f"{name}={self.identity(name)}"]
        made = run(command)
        script = run([ROOT / "deploy/redis/users", self.passwords, *(f"{name}={self.identity(name)}" for name in names)])
        assert sorted(made.splitlines()) == sorted(script.splitlines()), f"{made}\n{script}"
        return made

    def start_redis(self):
        users = self.folder / "users.acl"
        users.write_text(self.users())
        text = (ROOT / "deploy/redis/covault-redis.conf").read_text()
        text = text.replace("aclfile /etc/covault-redis/users.acl", f"aclfile {users}")
        (self.folder / "redis.conf").write_text(text)
        self.processes.append(Process("redis", ["redis-server", "redis.conf"], self.folder))

    def redis(self, user, *words):
        command = ["redis-cli", "--user", user, "--json", "-3", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "REDISCLI_AUTH": self.password(user)}
        )
        return (done.stdout + done.stderr).strip()

    def admin(self, *words):
        return run([self.covault, *words, "--config", "serve.toml"], cwd=self.folder)

    def live(self):
        answered = subprocess.run(
            [self.covault, "node", "list", "--json", "--config", "serve.toml"],
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        if answered.returncode:
            return None
        live = [node for node in json.loads(answered.stdout)["nodes"] if node["live"]]
        return True if len(live) == 3 else None


def acl(covault):
    with tempfile.TemporaryDirectory(prefix="covault-deploy-") as folder:
        cluster = Cluster(covault, folder)
        cluster.start_processes()
        cluster.start_redis()
        serve = cluster.processes
        until("redis", lambda: "PONG" in cluster.redis("operator", "PING") or None, serve)
        keys = [str(cluster.identity(name)) for name in cluster.SIGNERS]
        until("the API", lambda: answers(f"{cluster.BASE}/livez"), serve)
        cluster.admin("node", "admit", *keys)
        until("three live signers", cluster.live, serve)
        vault = cluster.admin(
            "vault", "create", "--name", "treasury", "--threshold", "2", "--signers", ",".join(keys),
            "--approvals", "automatic",
        ).strip().splitlines()[-1]  # fmt: skip
        token = (Path(folder) / "data/orchestrator/platform-token").read_text().strip()
        first_signature(cluster.BASE, token, vault)
        # The same of the nodes that are admitted by now, by their names.
        known = cluster.admin(
            "redis-acl", "--passwords", cluster.passwords, "--orchestrator", f"{cluster.ORCHESTRATOR}={cluster.identity(cluster.ORCHESTRATOR)}"
        )  # fmt: skip
        assert known == Path(folder, "users.acl").read_text(), known
        refused = cluster.redis("operator", "ACL", "LOG")
        # Nothing that they do is refused.
        assert refused == "[]", refused
        say("signs with one user of Redis per process, and Redis refused none of them anything")

        users = Path(folder, "users.acl").read_text()
        inbox = {}
        for line in users.splitlines():
            name = line.split()[1]
            ids = [word for word in line.split() if word.startswith("%W~covault:{covault}:inbox:") and "*" not in word]
            inbox[name] = ids[0].removeprefix("%W~").rstrip(")") if ids else None
        theirs, own = inbox["signer-2"], inbox["signer-1"]
        for words in (
            ("XREAD", "COUNT", "1", "STREAMS", theirs, "0-0"),
            ("XREAD", "COUNT", "1", "STREAMS", own, theirs, "0-0", "0-0"),
            ("XRANGE", theirs, "-", "+"),
            ("XREVRANGE", theirs, "+", "-"),
            ("XREVRANGE", inbox["orchestrator-1"], "+", "-"),
            ("XTRIM", theirs, "MAXLEN", "0"),
            ("XLEN", theirs),
            ("COPY", theirs, own),
            ("DEL", theirs),
            ("XADD", "covault:{covault-commands}:inbox:00", "*", "m", "x"),
            ("XADD", "other", "*", "m", "x"),
            ("FLUSHALL",),
            ("FLUSHDB",),
            ("KEYS", "*"),
            ("SCAN", "0"),
            ("MONITOR",),
            ("CONFIG", "GET", "*"),
            ("ACL", "LIST"),
            ("CLIENT", "LIST"),
            ("EVAL", "return 1", "0"),
            ("SHUTDOWN",),
        ):
            said = cluster.redis("signer-1", *words)
            assert "NOPERM" in said, f"a signer's user may {' '.join(words)}: {said}"
        for words in (("XREVRANGE", theirs, "+", "-"), ("FLUSHALL",), ("CONFIG", "GET", "*"), ("ACL", "SETUSER", "x")):
            said = cluster.redis("operator", *words)
            assert "NOPERM" in said, f"the operator's user may {' '.join(words)}: {said}"
        without = run(["redis-cli", "PING"])
        assert "NOAUTH" in without, without
        # What it may do, as whoever may write has to: docs/threat-model.md says so. The others sign on.
        announcements = "covault:{covault}:announcements"
        last = "18446744073709551615-18446744073709551615"
        for words in (
            ("XADD", theirs, "MAXLEN", "0", "*", "m", "x"),
            ("EXPIRE", theirs, "0"),
            ("EXPIRE", inbox["orchestrator-1"], "0"),
            ("EXPIRE", announcements, "0"),
            # The last id that there is: whoever reads the stream begins it anew.
            *(("XADD", stream, last, "m", "x") for stream in (theirs, inbox["orchestrator-1"], announcements)),
        ):
            said = cluster.redis("signer-1", *words)
            assert "NOPERM" not in said and "ERR" not in said, f"{' '.join(words)}: {said}"
        first_signature(cluster.BASE, token, vault)
        say("a signer's user reads no inbox but its own; it can disturb, drop and fill, and the others sign on")


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200 or None
    except OSError:
        return None


def image(rootfs):
    """`covault dev` in the image: a read-only root, uid 65532, nothing of this machine but /proc and /dev."""
    with tempfile.TemporaryDirectory(prefix="covault-image-") as folder:
        data = Path(folder) / "data"
        data.mkdir()
        shutil.chown(data, 65532, 65532)
        script = ROOT / "tests/support/read_only_root"
        process = Process(
            "image",
            [script, rootfs, data, "", "/usr/local/bin/covault", "dev", "--data", "/data/dev", "--listen", "127.0.0.1:0"],
            folder,
        )
        told = data / "dev/dev.json"
        dev = json.loads(until("dev.json", lambda: told.exists() and told.read_text() or None, [process]))
        first_signature(dev["baseUrl"], dev["platformToken"], dev["vaultUuid"])
    say("the image signs with a read-only root, as uid 65532")


def main():
    covault = os.environ.get("COVAULT", str(ROOT / "target/debug/covault"))
    try:
        if sys.argv[1:] == ["acl"]:
            acl(covault)
        elif sys.argv[1:2] == ["image"] and len(sys.argv) == 3:
            image(sys.argv[2])
        elif sys.argv[1:2] == ["sign"] and len(sys.argv) == 5:
            first_signature(sys.argv[2], Path(sys.argv[3]).read_text().strip(), sys.argv[4])
        else:
            sys.exit(__doc__)
    finally:
        Process.end_all()


if __name__ == "__main__":
    main()
