#![allow(non_snake_case)]

use super::*;

fn layered(file: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let variables = variables
        .iter()
        .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
        .collect();
    Config::layer(Some(("test.toml".to_owned(), file.to_owned())), variables)
        .map(|(config, _)| config)
}

fn problem(file: &str, variables: &[(&str, &str)]) -> String {
    layered(file, variables).expect_err(file).to_string()
}

#[test]
fn defaults__should_be_complete() {
    let (config, ignored) = Config::layer(None, Vec::new()).expect("the defaults load");
    assert!(ignored.is_empty());
    assert_eq!(config.serve.listen, "127.0.0.1:8080");
    assert_eq!(config.serve.grpc_listen, "127.0.0.1:8081");
    // A call that waits for an outcome must be able to tell it.
    assert!(config.serve.grpc_timeout_ms > config.serve.execute_wait_ms);
    assert_eq!(config.serve.max_body_bytes, 1 << 20);
    assert_eq!(
        config.serve.identity_file(),
        Path::new("./data/orchestrator/identity")
    );
    assert_eq!(
        config.serve.admin_token_file(),
        Path::new("./data/orchestrator/admin-token")
    );
    assert!(!config.signer.generate_passphrase && !config.signer.development);
    let policy = Path::new("./data/signer/policy.toml").to_owned();
    assert_eq!(config.signer.policy_file(), (policy, false));
    assert!(config.chains.evm().expect("ids").is_empty());
    assert!(config.evm.abi_files.is_empty());
    assert!(config.serve.simulate);
}

#[test]
fn roles__should_be_of_three_kinds() {
    let (config, _) = Config::layer(None, Vec::new()).expect("the defaults load");
    let roles = config.cluster.roles;
    assert!(roles.serve_api() && roles.run_vaults());
    assert_eq!(config.cluster.secret_file(), None);
    let config = layered(
        "[cluster]\nroles = \"http\"\nsecret_file = \"s\"",
        &[("COVAULT_CLUSTER_NAME", "one")],
    )
    .expect("loads");
    let roles = config.cluster.roles;
    assert!(roles.serve_api() && !roles.run_vaults());
    assert_eq!(config.cluster.name, "one");
    assert_eq!(config.cluster.secret_file(), Some(&"s".into()));
    let config = layered("[cluster]\nroles = \"orchestrator\"", &[]).expect("loads");
    assert!(!config.cluster.roles.serve_api() && config.cluster.roles.run_vaults());
    assert!(problem("[cluster]\nroles = \"web\"", &[]).contains("roles"));
}

#[test]
fn store__should_be_chosen_without_telling_its_password() {
    let (config, _) = Config::layer(None, Vec::new()).expect("the defaults load");
    assert_eq!(config.store.kind, StoreKind::Redb);
    let url = "postgres://covault:hunter2@db/covault";
    let config = layered(
        "[store]\nkind = \"postgres\"\nconnections = 3",
        &[("COVAULT_STORE_URL", url)],
    )
    .expect("loads");
    assert_eq!(config.store.kind, StoreKind::Postgres);
    assert_eq!(config.store.connections.get(), 3);
    assert_eq!(config.store.url, url);
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(problem("[store]\nkind = \"mysql\"", &[]).contains("store.kind"));
    assert!(problem("[store]\nconnections = 0", &[]).contains("store.connections"));
    assert!(problem("[store]\ntimeout_ms = 999", &[]).contains("store.timeout_ms"));
}

#[test]
fn limits__should_be_settings_that_make_sense() {
    let config = layered(
        "[limits]\nper_token_per_second = 0\n[serve]\nmax_connections = 7",
        &[
            ("COVAULT_LIMITS_PER_IP_BURST", "9"),
            ("COVAULT_SERVE_GRPC_LISTEN", ""),
        ],
    )
    .expect("loads");
    assert_eq!(config.limits.per_token_per_second, 0);
    assert_eq!(config.limits.per_ip_burst, 9);
    assert_eq!(config.serve.max_connections.get(), 7);
    assert_eq!(config.serve.grpc_listen, "");
    for (file, name) in [
        ("[serve]\nmax_connections = 0", "serve.max_connections"),
        ("[serve]\nmax_in_flight = 0", "serve.max_in_flight"),
        (
            "[serve]\nmax_connections_per_ip = 0",
            "serve.max_connections_per_ip",
        ),
        (
            "[limits]\nper_ip_per_second = -1",
            "limits.per_ip_per_second",
        ),
    ] {
        let problem = problem(file, &[]);
        assert!(problem.contains(name), "{problem}");
    }
}

#[test]
fn layers__should_override_from_file_to_environment() {
    let file = "[serve]\nlisten = \"0.0.0.0:1\"\nsigning_deadline_ms = 5\n[chains.evm.31337]\nrpc = [\"http://a\"]";
    let config = layered(
        file,
        &[
            ("COVAULT_SERVE_LISTEN", "127.0.0.1:2"),
            ("COVAULT_IDEMPOTENCY_STRICT", "true"),
            ("COVAULT_CHAINS_EVM_10_RPC", "http://b,http://c"),
            ("COVAULT_CHAINS_EVM_10_AGREE", "2"),
            ("COVAULT_CHAINS_SOLANA_RPC", "http://s"),
            ("COVAULT_CHAINS_TON_HEADER_FILES", "./ton.key"),
            ("COVAULT_EVM_ABI_FILES", "./a.json, ./b.json"),
        ],
    )
    .expect("loads");
    assert_eq!(config.serve.listen, "127.0.0.1:2");
    assert_eq!(config.serve.signing_deadline_ms, 5);
    assert!(config.idempotency.strict);
    assert_eq!(
        config.evm.abi_files,
        [Path::new("./a.json"), Path::new("./b.json")]
    );
    assert_eq!(
        config.chains.named("solana").expect("named").rpc,
        ["http://s"]
    );
    // Without an address it is not to be reached, whatever else is set.
    assert!(config.chains.named("ton").is_none());
    let evm = config.chains.evm().expect("ids");
    assert_eq!(evm[&31337].rpc, ["http://a"]);
    assert_eq!(evm[&10].rpc, ["http://b", "http://c"]);
    assert_eq!((evm[&31337].agree, evm[&10].agree), (1, 2));
    assert_eq!(evm[&10].timeout_ms, 5_000);
}

#[test]
fn chains__should_be_added_by_name_or_id() {
    let (mut config, _) = Config::layer(None, Vec::new()).expect("loads");
    for chain in ["bitcoin", "movement", "ton", "0", "31337"] {
        config.chains.add(chain, "http://n").expect(chain);
    }
    for name in ["bitcoin", "movement", "ton", "sonic"] {
        assert_eq!(config.chains.named(name).expect(name).rpc, ["http://n"]);
    }
    assert!(config.chains.evm().expect("ids").contains_key(&31337));
    let refusal = config.chains.add("dogecoin", "http://n").unwrap_err();
    let refusal = refusal.to_string();
    assert!(
        refusal.contains("dogecoin") && refusal.contains("stellar"),
        "{refusal}"
    );
}

#[test]
fn unknown_settings__should_be_refused_with_their_path() {
    let message = problem("[serve]\nlisten_on = \"x\"", &[]);
    assert!(
        message.contains("test.toml: unknown setting serve.listen_on"),
        "{message}"
    );
    assert!(message.contains("listen, "), "{message}");
    assert!(problem("[server]\nlisten = \"x\"", &[]).contains("unknown setting server"));
    assert!(problem("[chains.evm.1]\nurl = \"x\"", &[]).contains("chains.evm.1.url"));
    assert!(problem("[chains.evm.mainnet]\nrpc = []", &[]).contains("mainnet"));
    assert!(problem("serve = 5", &[]).contains("serve is a table"));
}

#[test]
fn wrong_values__should_name_their_setting() {
    assert!(problem("[serve]\nmax_body_bytes = \"big\"", &[]).contains("max_body_bytes"));
    assert!(problem("[log]\nformat = \"xml\"", &[]).contains("format"));
    assert!(problem("[chains.ton]\nagree = \"2\"", &[]).contains("chains.ton.agree must be"));
    assert!(problem("[chains.ton]\nagree = -2", &[]).contains("agree"));
    assert!(problem("[evm]\nabi_files = \"a.json\"", &[]).contains("evm.abi_files must be"));
    assert!(problem("[log]\n[serve", &[]).contains("test.toml is not TOML: line 2: "));
    let message = problem("", &[("COVAULT_SERVE_MAX_BODY_BYTES", "big")]);
    assert!(
        message.contains("COVAULT_SERVE_MAX_BODY_BYTES") && message.contains("big"),
        "{message}"
    );
    assert!(problem("", &[("COVAULT_CHAINS_EVM_X_RPC", "u")]).contains("COVAULT_CHAINS_EVM_X_RPC"));
}

#[test]
fn text_that_is_no_toml__should_not_be_shown() {
    for line in [
        "redis_url = \"redis://:hunter2@localhost",
        "redis_url = redis://:hunter2@localhost",
        "redis_url = 'redis://:hunter2@localhost\n",
        "redis_url: \"redis://:hunter2@localhost\"",
        "redis_url = \"redis://:hunter2\\@localhost\"",
        "redis_url = \"a\" hunter2",
        "redis_url = \"hunter2\"\nredis_url = \"hunter2\"",
        "hunter2 hunter2",
    ] {
        let message = problem(&format!("[bus]\n{line}\n"), &[]);
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn environment__should_set_nothing_that_decides_what_a_signer_signs() {
    for setting in [
        "peers",
        "policy_file",
        "orchestrators",
        "least_threshold",
        "development",
        "generate_passphrase",
        "data_dir",
        "identity_file",
        "backup_recipients",
    ] {
        let variable = format!("COVAULT_SIGNER_{}", setting.to_ascii_uppercase());
        for value in ["", "1", "true"] {
            let problem = problem("", &[(&variable, value)]);
            let whole = format!("{variable}: signer.{setting} is read from the configuration file");
            assert!(problem.contains(&whole), "{problem}");
        }
    }
    let config = layered(
        "",
        &[
            ("COVAULT_SIGNER_NAME", "vienna"),
            ("COVAULT_SIGNER_PASSPHRASE_FILE", "/run/passphrase"),
            ("COVAULT_SIGNER_NONCE_POOL_LOW", "5"),
            ("COVAULT_SIGNER_NONCE_POOL_HIGH", "5"),
        ],
    )
    .expect("loads");
    assert_eq!(config.signer.name, "vienna");
    assert_eq!(config.signer.nonce_pool_high, 5);
}

#[test]
fn signer__should_name_all_that_a_closed_node_lacks() {
    let check = |text: &str| {
        let config = layered(text, &[]).expect("loads");
        let checked = config.signer.check_secure();
        checked.map_err(|error| error.to_string())
    };
    let policy = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/policy.toml");
    let all = [
        ("peers", "peers = [\"one\"]".to_owned()),
        ("least_threshold", "least_threshold = 2".to_owned()),
        ("policy file", format!("policy_file = {policy:?}")),
    ];
    for given in 0..8_usize {
        let is_given = |place: usize| given & (1 << place) != 0;
        let lines = all.iter().enumerate();
        let lines = lines.filter(|(place, _)| is_given(*place));
        let lines: Vec<&str> = lines.map(|(_, (_, line))| line.as_str()).collect();
        let text = format!("[signer]\n{}\n", lines.join("\n"));
        match check(&text) {
            Ok(()) => assert_eq!(given, 7, "{text}"),
            Err(problem) => {
                for (place, (name, _)) in all.iter().enumerate() {
                    assert_eq!(problem.contains(name), !is_given(place), "{problem}");
                }
                assert!(problem.contains("signer.development = true"), "{problem}");
            }
        }
        check(&format!("{text}development = true\n")).expect("development allows it");
    }
}

#[test]
fn environment__should_report_variables_that_mean_nothing() {
    let variables = vec![
        ("COVAULT_SERVICE_HOST".to_owned(), "10.0.0.1".to_owned()),
        ("COVAULT_SERVE".to_owned(), "x".to_owned()),
    ];
    let (_, ignored) = Config::layer(None, variables).expect("loads");
    assert_eq!(ignored, ["COVAULT_SERVICE_HOST", "COVAULT_SERVE"]);
}

#[test]
fn debug__should_not_show_urls() {
    let config = layered(
        "[bus]\nredis_url = \"redis://:hunter2@h\"\n[chains.solana]\nrpc = [\"https://key\"]",
        &[],
    )
    .expect("loads");
    let shown = format!("{config:?}");
    assert!(
        !shown.contains("hunter2") && !shown.contains("https://key"),
        "{shown}"
    );
}

#[test]
fn samples__should_load() {
    for (name, text) in [
        ("serve.toml", include_str!("../../deploy/serve.toml")),
        ("signer-1.toml", include_str!("../../deploy/signer-1.toml")),
        ("signer-2.toml", include_str!("../../deploy/signer-2.toml")),
        ("signer-3.toml", include_str!("../../deploy/signer-3.toml")),
    ] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .canonicalize()
            .unwrap();
        let at = |path: &str| root.join(path).to_str().unwrap().to_owned();
        let file = at(&format!("deploy/{name}"));
        let layered = Config::layer(Some((file, text.to_owned())), Vec::new());
        let (config, _) = layered.expect(name);
        if name.starts_with("signer") {
            assert_eq!(
                config.signer.orchestrators,
                [at("data/orchestrator/identity.pub")]
            );
            let policy = root.join("deploy/policy.toml");
            assert_eq!(config.signer.policy_file(), (policy, true));
            // As they stand they are closed.
            assert!(!config.signer.development);
            config.signer.check_secure().expect(name);
            let own = at(&format!(
                "data/{}/identity.pub",
                name.trim_end_matches(".toml")
            ));
            assert_eq!(config.signer.peers.len(), 2);
            assert!(!config.signer.peers.contains(&own));
        }
    }
}

#[test]
fn vaults_of_a_signer__should_have_rules_of_their_own() {
    let uuid = "00000000-0000-4000-8000-000000000001";
    let text = format!(
        "[signer]\nleast_spare = 0\n[signer.vaults.\"{uuid}\"]\npeers = [\"a.pub\"]\nleast_threshold = 3\n"
    );
    let (config, _) = Config::layer(Some(("test".to_owned(), text)), Vec::new()).expect("it loads");
    let (all, own) = (config.signer.limits(), &config.signer.vaults[uuid]);
    assert_eq!((all.least_threshold, all.least_spare), (None, Some(0)));
    assert_eq!(own.peers, ["a.pub"]);
    let limits = own.limits();
    assert_eq!(
        (limits.least_threshold, limits.least_spare),
        (Some(3), None)
    );
    for wrong in [
        "[signer.vaults.treasury]\npeers = []\n".to_owned(),
        format!("[signer.vaults.\"{uuid}\"]\nthreshold = 3\n"),
        format!("[signer.vaults.\"{uuid}\"]\nleast_threshold = \"3\"\n"),
    ] {
        assert!(Config::layer(Some(("test".to_owned(), wrong)), Vec::new()).is_err());
    }
}

/// A file of the public product, as its users have it.
const CLIENT_SIGNER: &str = "vault-uuid: 00000000-0000-4000-8000-000000000001
callback-url: http://127.0.0.1:8088/callback
ssh:
  private-key: /etc/client/id_ed25519
  password:
http-health:
  listening-addr: :8090
";

fn yaml(text: &str) -> Result<Config, ConfigError> {
    Config::layer(Some(("config.yml".to_owned(), text.to_owned())), Vec::new())
        .map(|(config, _)| config)
}

#[test]
fn client_signer__should_take_the_file_of_the_public_product_as_it_is() {
    let config = yaml(CLIENT_SIGNER).expect("loads");
    let client = &config.client_signer;
    assert_eq!(client.health_listen, ":8090");
    assert!(client.password().is_none() && !client.holds_secret());
    match client.private_key() {
        Some(PrivateKey::File(path)) => assert_eq!(path, Path::new("/etc/client/id_ed25519")),
        _ => panic!("{client:?}"),
    }
    let callback = client.callback().expect("complete").expect("there");
    assert_eq!(callback.url, "http://127.0.0.1:8088/callback");
    assert_eq!(callback.format, CallbackFormat::Protobuf);
    assert_eq!(
        callback.vault.to_string(),
        "00000000-0000-4000-8000-000000000001"
    );
    // With what a node of ours needs beside it, and the key in the file.
    let more = CLIENT_SIGNER.replace(
        "private-key: /etc/client/id_ed25519\n  password:",
        "private-key: |\n    -----BEGIN OPENSSH PRIVATE KEY-----\n    AAAA\n    -----END OPENSSH PRIVATE KEY-----\n  password: hunter2",
    ) + "callback-format: json\nbus:\n  redis_url: redis://bus:6379\nsigner:\n  name: bot\n  least_threshold: 2\n  orchestrators: [ssh-ed25519 AAAA]\n";
    let config = yaml(&more).expect("loads");
    let client = &config.client_signer;
    assert!(client.holds_secret() && client.password().is_some());
    assert!(matches!(client.private_key(), Some(PrivateKey::Text(_))));
    assert_eq!(
        client.callback().expect("complete").expect("there").format,
        CallbackFormat::Json
    );
    assert_eq!(
        (config.signer.name.as_str(), config.bus.redis_url.as_str()),
        ("bot", "redis://bus:6379")
    );
    assert_eq!(config.signer.orchestrators, ["ssh-ed25519 AAAA"]);
    assert_eq!(config.signer.limits().least_threshold, Some(2));
    assert!(!format!("{config:?}").contains("hunter2"));
    // The sample, too.
    let sample = include_str!("../../deploy/client-signer.yml");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .canonicalize()
        .unwrap();
    let file = root.join("deploy/client-signer.yml");
    let file = file.to_str().unwrap().to_owned();
    let layered = Config::layer(Some((file, sample.to_owned())), Vec::new());
    let config = layered.expect("loads").0;
    let policy = root.join("deploy/policy.toml");
    assert_eq!(config.signer.policy_file(), (policy, true));
    assert_eq!(config.signer.data_dir, root.join("data/client-signer"));
    config
        .client_signer
        .callback()
        .expect("complete")
        .expect("there");
    config.signer.check_secure().expect("closed");
}

#[test]
fn client_signer__should_say_what_is_wrong_with_its_file_without_showing_it() {
    let wrong = |text: &str| yaml(text).expect_err(text).to_string();
    for (text, says) in [
        (
            "ssh:\n  password: hunter2\n  passwort: x\n",
            "unknown setting ssh.passwort; allowed: private-key, password",
        ),
        ("callback-uri: http://x\n", "unknown setting callback-uri"),
        (
            "ssh:\n  password: 1234\n",
            "ssh.password must be of type string (in quotes where",
        ),
        ("ssh: hunter2\n", "ssh is a table of settings"),
        (
            "vault-uuid: a\nvault-uuid: b\n",
            "config.yml is not YAML that can be read: line 2",
        ),
        ("ssh: [hunter2", "config.yml is not YAML that can be read"),
        ("hunter2", "it must be a mapping of names to values"),
        ("signer:\n  name:\n", "a setting without a value"),
        (
            "callback-format: xml\n",
            "\"xml\" cannot be used; use \"protobuf\" or \"json\"",
        ),
    ] {
        let problem = wrong(text);
        assert!(
            problem.contains(says) && !problem.contains("hunter2"),
            "{text}: {problem}"
        );
    }
    for (text, says) in [
        ("vault-uuid: a\ncallback-url: http://x\n", "is not a uuid"),
        (
            "vault-uuid: a\n",
            "callback-url (client_signer.callback_url) is missing",
        ),
        (
            "callback-url: http://x\n",
            "vault-uuid (client_signer.vault) is missing",
        ),
    ] {
        let callback = yaml(text).expect("loads").client_signer.callback();
        let problem = callback.err().expect(text).to_string();
        assert!(problem.contains(says), "{problem}");
    }
    assert!(
        yaml("log:\n  level: info\n")
            .expect("loads")
            .client_signer
            .callback()
            .expect("none")
            .is_none()
    );
    // Variables change neither what decides nor whose name it is in.
    let refused = problem("", &[("COVAULT_CLIENT_SIGNER_CALLBACK_URL", "http://evil")]);
    assert!(
        refused.contains("client.signer") || refused.contains("configuration file only"),
        "{refused}"
    );
    layered("", &[("COVAULT_CLIENT_SIGNER_PASSWORD", "x")])
        .expect("a password may come from there");
}

#[test]
fn client_signer__should_want_its_file_private_for_what_is_in_it_alone() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.yml");
    let load = |text: &str, variables: &[(&str, &str)]| {
        std::fs::write(&path, text).expect("written");
        let readable = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&path, readable).expect("readable by all");
        let variables = variables
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        Config::layer_trusted(Some(&path), variables).map(|(config, _)| config)
    };
    let config = load(
        CLIENT_SIGNER,
        &[("COVAULT_CLIENT_SIGNER_PASSWORD", "hunter2")],
    );
    let client = config.expect("no secret is in the file").client_signer;
    assert!(client.password().is_some());
    let secret = CLIENT_SIGNER.replace("password:", "password: hunter2");
    let refused = load(&secret, &[]).expect_err("others can read it");
    assert!(matches!(refused, ConfigError::Untrusted(_)), "{refused}");
    // Nor does a variable hide what is.
    let hidden = load(&secret, &[("COVAULT_CLIENT_SIGNER_PASSWORD", "")]);
    let refused = hidden.expect_err("others can read it");
    assert!(matches!(refused, ConfigError::Untrusted(_)), "{refused}");
}
