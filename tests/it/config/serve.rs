//! What can be wrong with the file, the variables, the folder and the files of `covault serve`.

use std::{fs, path::Path, process::Command};

use super::{NOBODY, Row, SECRET, STRANGER, Surroundings, mode, tls_fixture, tls_text};

/// The row that needs a system where root alone has low ports.
pub const PORT_OF_ROOT: &str = "a port of root's";

/// What is right.
pub fn good(around: &Surroundings, settings: &mut Vec<(String, String)>) {
    for (setting, value) in [
        ("bus.redis_url", around.redis_url().as_str()),
        ("serve.listen", "127.0.0.1:0"),
        ("serve.grpc_listen", "127.0.0.1:0"),
        ("serve.data_dir", "DIR/data"),
    ] {
        settings.push((setting.to_owned(), format!("{value:?}")));
    }
    settings.push(("serve.init".to_owned(), "true".to_owned()));
}

fn serve(name: &'static str) -> Row {
    Row::of("serve", name)
}

/// A row with one chain, whose node is never asked.
fn chain(name: &'static str) -> Row {
    serve(name).set("chains.evm.1.rpc", "[\"http://127.0.0.1:1\"]")
}

pub fn rows(around: &Surroundings) -> Vec<Row> {
    let mut rows = values();
    rows.extend(variables_and_words());
    rows.extend(addresses(around));
    rows.extend(folders());
    rows.extend(secret_files());
    rows.extend(other_files());
    rows.extend(chains());
    rows
}

fn values() -> Vec<Row> {
    vec![
        serve("a section that is none")
            .text("serv.listen", "127.0.0.1:0")
            .says_of_file(&["unknown setting serv;", "allowed: bus, chains"]),
        serve("a key that is none")
            .text("serve.listn", "127.0.0.1:0")
            .says_of_file(&["unknown setting serve.listn;", "listen, "]),
        serve("a chain that is none")
            .set("chains.ethereum.rpc", "[]")
            .says_of_file(&["unknown setting chains.ethereum;", "evm"]),
        serve("a format that is none")
            .text("log.format", "yaml")
            .says_of_file(&["log.format: \"yaml\" cannot be used; use \"text\" or \"json\""]),
        serve("a store that is none")
            .text("store.kind", "mysql")
            .says_of_file(&["store.kind: \"mysql\" cannot be used; use \"redb\" or \"postgres\""]),
        serve("a role that is none")
            .text("cluster.roles", "both")
            .says_of_file(&["cluster.roles: \"both\" cannot be used; use one of \"all\""]),
        serve("a level that is none")
            .text("log.level", "infoo")
            .says_of_file(&["log.level: \"infoo\" is not a level; use trace"]),
        serve("traces in the clear")
            .text("log.otlp_url", "http://collector.example:4318")
            .says_of_file(&["log.otlp_url: is http to another machine; use https"]),
        serve("traces with a password")
            .text("log.otlp_url", "https://anna:hunter2@collector.example")
            .says_of_file(&["log.otlp_url: holds a user or password", "use a receiver"]),
        serve("more than all traces")
            .set("log.otlp_sample", "1.5")
            .says_of_file(&["log.otlp_sample: 1.5 is no part of the requests; use 0.0"]),
        serve("a text for a number")
            .text("serve.max_body_bytes", "1 MB")
            .says_of_file(&["serve.max_body_bytes must be of type integer, not \"1 MB\""]),
        serve("a text for yes or no")
            .text("serve.simulate", "yes")
            .says_of_file(&["serve.simulate must be of type boolean, not \"yes\""]),
        serve("yes for a text")
            .set("serve.data_dir", "true")
            .says_of_file(&["serve.data_dir must be of type string"]),
        serve("a secret for a list")
            .text("chains.evm.1.rpc", "https://node/hunter2")
            .says_of_file(&["chains.evm.1.rpc must be of type array"]),
        serve("a value for a section")
            .set("store", "5")
            .says_of_file(&["store is a table of settings, not a value"]),
        serve("below 0")
            .set("serve.max_connections", "-1")
            .says_of_file(&["serve.max_connections: -1 is too low; use 1 or more"]),
        serve("0 calls at once")
            .set("serve.max_in_flight", "0")
            .says_of_file(&["serve.max_in_flight: 0 is too low; use 1 or more"]),
        serve("too high a number")
            .set("limits.per_token_burst", "5000000000")
            .says_of_file(&["limits.per_token_burst: 5000000000 is too high; use 4294967295"]),
        serve("no body")
            .set("serve.max_body_bytes", "0")
            .says_of_file(&["serve.max_body_bytes: 0 leaves no room", "use 1 or more"]),
        serve("no time for headers")
            .set("serve.header_timeout_ms", "0")
            .says_of_file(&["serve.header_timeout_ms: 0 leaves no room", "use 1 or more"]),
        serve("too short a wait")
            .set("serve.execute_wait_ms", "1000")
            .says_of_file(&[
                "serve.execute_wait_ms: 1000 is not above serve.signing_deadline_ms, which is 60000",
            ]),
        serve("no folder")
            .text("serve.data_dir", "")
            .says_of_file(&["serve.data_dir: is empty; name a folder"]),
        serve("too short a time for the store")
            .set("store.timeout_ms", "5")
            .says_of_file(&["store.timeout_ms: must be at least 1000"]),
        serve("a PostgreSQL that is not used")
            .text("store.url", "postgres://u:hunter2@h/d")
            .says_of_file(&["store.kind: \"redb\"", "use \"postgres\", or leave the URL out"]),
        serve("a console without origin")
            .text("console.listen", "127.0.0.1:0")
            .says_of_file(&["console.origin is required where console.listen is set"]),
        serve("a console in the clear")
            .text("console.listen", "127.0.0.1:0")
            .text("console.origin", "http://console.example.com")
            .says_of_file(&["console.origin must be https"]),
        serve("no TOML, and a secret")
            .set("bus.redis_url", "redis://:hunter2@a")
            .says(&["DIR/conf.toml is not TOML: line ", "quoted"]),
        serve("a key twice")
            .set("log.level", "\"info\"\nlog.level = \"warn\"")
            .says(&["DIR/conf.toml is not TOML: line ", "duplicate key"]),
    ]
}

fn variables_and_words() -> Vec<Row> {
    vec![
        serve("a variable with no address")
            .variable("COVAULT_SERVE_LISTEN", "nowhere")
            .says(&[
                "COVAULT_SERVE_LISTEN: serve.listen: \"nowhere\" is not an address; use IP:PORT",
            ]),
        serve("a variable with no number")
            .variable("COVAULT_SERVE_MAX_CONNECTIONS", "many")
            .says(&["COVAULT_SERVE_MAX_CONNECTIONS: \"many\" is not a whole number"]),
        serve("a variable below 0")
            .variable("COVAULT_SERVE_MAX_CONNECTIONS", "-4")
            .says(&["COVAULT_SERVE_MAX_CONNECTIONS: serve.max_connections: -4 is too low; use 1"]),
        serve("a variable with no format")
            .variable("COVAULT_LOG_FORMAT", "yaml")
            .says(&["COVAULT_LOG_FORMAT: log.format: \"yaml\" cannot be used; use \"text\""]),
        serve("a variable with no Redis")
            .variable("COVAULT_BUS_REDIS_URL", "http://u:hunter2@h")
            .says(&["COVAULT_BUS_REDIS_URL: bus.redis_url: ", "use redis://"]),
        serve("a file that is not there")
            .command(&["serve", "--config", "DIR/none.toml"])
            .says(&["cannot read the configuration file DIR/none.toml: No such file"]),
        serve("a folder for a file")
            .command(&["serve", "--config", "DIR"])
            .says(&["cannot read the configuration file DIR: Is a directory"]),
        serve("an option that is none")
            .command(&["serve", "--confg", "DIR/conf.toml"])
            .code(2)
            .says(&["unexpected argument '--confg'", "'--config'"]),
        serve("an option with a role that is none")
            .command(&["serve", "--roles", "both"])
            .code(2)
            .says(&["invalid value 'both' for '--roles", "orchestrator"]),
    ]
}

fn addresses(around: &Surroundings) -> Vec<Row> {
    let used = &around.used;
    let taken = |name, setting: &str| {
        let words = format!("{setting}: cannot listen on {used}; choose another address");
        serve(name)
            .text(setting, used)
            .says(&[&words, "Address already in use"])
    };
    let none = |name, setting: &str, address: &str| {
        let words = format!("{setting}: {address:?} is not an address; use IP:PORT");
        serve(name).text(setting, address).says_of_file(&[&words])
    };
    vec![
        none("a port alone", "serve.listen", "8080"),
        none("a port that is none", "serve.listen", "127.0.0.1:65536"),
        none("gRPC at no address", "serve.grpc_listen", "here"),
        none("metrics at no address", "serve.metrics_listen", "9464"),
        none("a console at no address", "console.listen", "8082")
            .text("console.origin", "https://console.example.com"),
        taken("a port in use", "serve.listen"),
        taken("a port of gRPC in use", "serve.grpc_listen"),
        taken("a port of metrics in use", "serve.metrics_listen"),
        taken("a port of the console in use", "console.listen")
            .text("console.origin", "https://console.example.com"),
        serve("an address of another machine")
            .text("serve.listen", "203.0.113.1:8080")
            .says(&["serve.listen: cannot listen on 203.0.113.1:8080; choose another address"]),
        serve(PORT_OF_ROOT)
            .text("serve.listen", "127.0.0.1:443")
            .folder("data", 0o700, Some(NOBODY))
            .run_by_nobody()
            .says(&[
                "serve.listen: cannot listen on 127.0.0.1:443; choose",
                "Permission denied",
            ]),
    ]
}

fn folders() -> Vec<Row> {
    let of_signer = |folder: &Path| {
        fs::create_dir(folder.join("data")).unwrap();
        fs::write(folder.join("data/keyring.age"), "").unwrap();
    };
    vec![
        serve("a folder below a file")
            .text("serve.data_dir", "DIR/file/data")
            .private("file", "")
            .says(&["serve.data_dir: ", "DIR/file/data", "Not a directory"]),
        serve("a file for a folder")
            .text("serve.data_dir", "DIR/file")
            .private("file", "")
            .says(&["serve.data_dir: cannot make the folder DIR/file"]),
        serve("a folder that cannot be written")
            .folder("data", 0o500, Some(NOBODY))
            .run_by_nobody()
            .says(&[
                "serve.data_dir: cannot write DIR/data/lock",
                "user 65532",
                "(chown)",
            ]),
        serve("a folder of another user")
            .folder("data", 0o700, Some(STRANGER))
            .run_by_nobody()
            .says(&["serve.data_dir: DIR/data belongs to user 65533", "(chown)"]),
        serve("a folder that cannot be made")
            .run_by_nobody()
            .says(&[
                "serve.data_dir: cannot make the folder DIR/data",
                "Permission denied",
            ]),
        serve("a folder that all can write")
            .folder("data", 0o777, None)
            .says(&[
                "serve.data_dir: DIR/data can be written by others",
                "chmod go-w DIR/data",
            ]),
        serve("a folder of a signer node")
            .prepare(of_signer)
            .says(&["serve.data_dir: DIR/data is the folder of a signer node; name another"]),
        serve("no orchestrator in the folder")
            .set("serve.init", "false")
            .says(&[
                "serve.data_dir: there is no orchestrator in DIR/data: DIR/data/identity is missing",
                "covault serve --init",
            ]),
        serve("a store that is gone")
            .set("serve.init", "false")
            .prepare(with_identity)
            .says(&[
                "serve.data_dir: DIR/data has the identity of an orchestrator, but its store DIR/data/store.redb is missing",
                "covault backup restore",
            ]),
        serve("a store that is none")
            .folder("data", 0o700, None)
            .private("data/store.redb", "garbage")
            .says(&["serve.data_dir: the store DIR/data/store.redb cannot be opened"]),
        serve("a folder for a store")
            .folder("data", 0o700, None)
            .folder("data/store.redb", 0o700, None)
            .says(&["serve.data_dir: the store DIR/data/store.redb cannot be opened"]),
    ]
}

/// An orchestrator's folder that holds nothing but its identity.
pub fn with_identity(folder: &Path) {
    let data = folder.join("data");
    fs::create_dir(&data).unwrap();
    mode(&data, 0o700);
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"])
        .arg(data.join("identity"))
        .status();
    assert!(made.unwrap().success());
}

fn secret_files() -> Vec<Row> {
    let long = SECRET.repeat(9);
    let (admin, platform) = ("serve.admin_token_file", "serve.platform_token_file");
    vec![
        serve("an admin token that others can read")
            .text(admin, "DIR/token")
            .file("token", &long, 0o644)
            .says(&[
                "serve.admin_token_file: others than its owner",
                "chmod 600 DIR/token",
            ]),
        serve("an empty platform token")
            .text(platform, "DIR/token")
            .private("token", "\n")
            .says(&["serve.platform_token_file: DIR/token is empty"]),
        serve("a token that can be guessed")
            .text(platform, "DIR/token")
            .private("token", SECRET)
            .says(&["serve.platform_token_file: the token in DIR/token is shorter than 16"]),
        serve("one token for all")
            .text(platform, "DIR/token")
            .text(admin, "DIR/copy")
            .private("token", &long)
            .private("copy", &long)
            .says(&["serve.platform_token_file and serve.admin_token_file hold the same token"]),
        serve("a socket of the admin API in a folder that is missing")
            .text("serve.admin_listen", "unix:DIR/none/admin.sock")
            .says(&["serve.admin_listen: the folder DIR/none is missing; make it"]),
        serve("a file where the socket of the admin API is to be")
            .text("serve.admin_listen", "unix:DIR/notes")
            .private("notes", "not a socket")
            .says(&["serve.admin_listen: DIR/notes is there and is not a socket"]),
        serve("a token in a folder that is missing")
            .text(platform, "DIR/none/token")
            .says(&["serve.platform_token_file: the folder DIR/none is missing; make it"]),
        serve("an identity that others can read")
            .text("serve.identity_file", "DIR/identity")
            .file("identity", SECRET, 0o644)
            .says(&[
                "serve.identity_file: identity file DIR/identity: others can read it",
                "chmod 600",
            ]),
        serve("an identity that is none")
            .text("serve.identity_file", "DIR/identity")
            .private("identity", SECRET)
            .says(&[
                "serve.identity_file: identity file DIR/identity: is not an OpenSSH private key",
            ]),
        serve("a webhook key that is none")
            .text("webhooks.key_file", "DIR/key")
            .private("key", SECRET)
            .says(&["webhooks.key_file: must hold 64 hex digits"]),
        serve("a cluster secret that is not there")
            .text("cluster.secret_file", "DIR/secret")
            .says(&["cluster.secret_file: cannot read DIR/secret"]),
        serve("a cluster secret that is none")
            .text("cluster.secret_file", "DIR/secret")
            .private("secret", SECRET)
            .says(&[
                "cluster.secret_file DIR/secret: ",
                "64 hexadecimal digits",
                "openssl rand",
            ]),
        serve("a process without vaults, alone")
            .text("cluster.roles", "http")
            .says(&[
                "cluster.secret_file: is empty",
                "cluster.roles = \"http\"",
                "name the file",
            ]),
        serve("a process without vaults, with a store of its own")
            .text("cluster.roles", "http")
            .text("cluster.secret_file", "DIR/secret")
            .private("secret", &"ab".repeat(32))
            .says(&[
                "store.kind: ",
                "cluster.roles = \"http\"",
                "use \"postgres\"",
            ]),
    ]
}

fn other_files() -> Vec<Row> {
    let (certificate, key) = ("tls.certificate_file", "tls.key_file");
    vec![
        serve("a policy that is not there")
            .text("serve.policy_file", "DIR/policy.toml")
            .says(&[
                "serve.policy_file: the policy file DIR/policy.toml is missing: bring it back",
            ]),
        serve("a policy with a key that is none")
            .text("serve.policy_file", "DIR/policy.toml")
            .private("policy.toml", "version = 2\nraw_singing = true\n")
            .says(&["serve.policy_file: policy file DIR/policy.toml: raw_singing: unknown key"]),
        serve("a policy that others can write")
            .text("serve.policy_file", "DIR/policy.toml")
            .file("policy.toml", "version = 2\n", 0o666)
            .says(&[
                "serve.policy_file: DIR/policy.toml can be written by others",
                "chmod go-w",
            ]),
        serve("a certificate without its key")
            .text(certificate, &tls_fixture("a.pem"))
            .says(&["tls.certificate_file and tls.key_file: set both, or neither"]),
        serve("a certificate that is not there")
            .text(certificate, "DIR/none.pem")
            .text(key, "DIR/key")
            .private("key", &tls_text("a.key"))
            .says(&["tls.certificate_file DIR/none.pem: No such file"]),
        serve("a certificate with the key of another")
            .text(certificate, &tls_fixture("b.pem"))
            .text(key, "DIR/key")
            .private("key", &tls_text("a.key"))
            .says(&["tls.certificate_file and tls.key_file do not belong together"]),
        serve("a key that others can read")
            .text(certificate, &tls_fixture("a.pem"))
            .text(key, "DIR/key")
            .private("key", &tls_text("a.key"))
            .prepare(|folder| mode(&folder.join("key"), 0o644))
            .says(&["tls.key_file: others than its owner", "chmod 600 DIR/key"]),
        serve("an ABI that is not there")
            .set("evm.abi_files", "[\"DIR/none.json\"]")
            .says(&["evm.abi_files: DIR/none.json cannot be read: No such file"]),
        serve("an ABI that is none")
            .set("evm.abi_files", "[\"DIR/abi.json\"]")
            .private("abi.json", "abi")
            .says(&["evm.abi_files: DIR/abi.json is not a contract's ABI in JSON"]),
        serve("a network that is none")
            .set("webhooks.allow", "[\"10.0.0.0/40\"]")
            .says(&["webhooks.allow: \"10.0.0.0/40\" is not a network such as 10.1.0.0/16"]),
    ]
}

fn chains() -> Vec<Row> {
    vec![
        serve("a chain id that is none")
            .set("chains.evm.mainnet.rpc", "[]")
            .says_of_file(&[
                "chains.evm.mainnet: \"mainnet\" is not an EVM chain id: use a number",
            ]),
        serve("an address of a node that is none")
            .set("chains.evm.1.rpc", "[\"http://a\", \"ftp://b/hunter2\"]")
            .says_of_file(&["chains.evm.1.rpc: address 2 of 2 is not a URL; use http://HOST:PORT"]),
        chain("more nodes than there are")
            .set("chains.evm.1.agree", "2")
            .says_of_file(&["chains.evm.1.agree: 2 is not between 1 and the number of its nodes"]),
        chain("a file with a key that is not there")
            .set("chains.evm.1.header_files", "[\"DIR/none\"]")
            .says(&["chains.evm.1", "header_files", "cannot read DIR/none"]),
        chain("more files than nodes")
            .set("chains.evm.1.header_files", "[\"\", \"\"]")
            .says(&["chains.evm.1: header_files names more files than rpc has addresses"]),
        chain("a header that is none")
            .set("chains.evm.1.header_files", "[\"DIR/header\"]")
            .private("header", SECRET)
            .says(&[
                "chains.evm.1",
                "DIR/header must hold one line, \"Name: value\"",
            ]),
        chain("a login that is none")
            .set("chains.evm.1.login_files", "[\"DIR/login\"]")
            .private("login", SECRET)
            .says(&["chains.evm.1", "DIR/login must hold \"user:password\""]),
        chain("a price that is none")
            .text("chains.evm.1.most_price", "1 gwei")
            .says(&[
                "chains.evm.1",
                "most_price must be a whole number as a text, such as",
            ]),
        chain("a contract that is none")
            .text("chains.evm.1.batch_contract", "0x12")
            .says(&[
                "chains.evm.1",
                "batch_contract must be 0x and 40 hex digits",
            ]),
        chain("a replacement without a limit")
            .set("chains.evm.1.speed_up_after_blocks", "3")
            .says(&["chains.evm.1", "speed_up_most_fee must be the most"]),
        chain("questions without a pause")
            .set("chains.evm.1.deposit_poll_ms", "1")
            .says(&["chains.evm.1", "deposit_poll_ms must be at least 50"]),
        chain("a node twice")
            .set("chains.evm.1.rpc", "[\"http://a\", \"http://a\"]")
            .says(&["chains.evm.1: rpc names an address twice"]),
    ]
}
