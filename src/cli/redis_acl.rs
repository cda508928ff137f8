//! `covault redis-acl`: the users of the bus.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use covault_actors::operations::ListNodes;
use covault_core::{order::NodeId, schema::admin};
use secrecy::ExposeSecret as _;
use sha2::{Digest as _, Sha256};

use super::{client::ConnectionArgs, print_line, public_key};
use crate::{
    adapters::OsEntropy,
    api::auth::new_token,
    config::{Config, namespace_problem},
    files, identities,
    redis_access::commands_namespace,
    wiring::explain,
};

/// Print the users of Redis (aclfile): one for each process of the cluster, which reads its own inbox alone.
///
/// A process may write to any inbox and announce itself, read its own inbox and the announcements, and trim its own.
/// Anyone who may write can also disturb the bus, drop what is in any inbox, and fill Redis; it reads nothing of others.
/// Orchestrators may also forward commands to each other. "operator" is the user for people.
///
/// With --config (or --url and --token-file) there is a user for each admitted node, by its name, and with --config
/// one for this orchestrator. Without, only for those named here: so the first users are made, before there is a bus.
///
/// FOLDER/NAME.password holds a user's password, and is made (mode 0600) where it is missing: bring it to that
/// process's machine, for bus.redis_url_file (redis://NAME:PASSWORD@HOST:6379), and delete it here. What is printed has
/// only its SHA-256.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder of the passwords.
    #[arg(long, value_name = "FOLDER")]
    passwords: PathBuf,
    /// A signer node: the name of its user, and its public key (an OpenSSH line or a .pub file). Can be repeated.
    #[arg(long, value_name = "NAME=KEY")]
    signer: Vec<String>,
    /// An orchestrator, likewise.
    #[arg(long, value_name = "NAME=KEY")]
    orchestrator: Vec<String>,
    /// bus.namespace of the cluster [default: that of --config, else covault]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// A user of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RedisProcess {
    Signer(NodeId),
    Orchestrator(NodeId),
    /// The user for people.
    Person,
}

const OPERATOR: &str = "operator";
const DEFAULT_NAMESPACE: &str = "covault";

/// Runs the command.
///
/// # Errors
/// When a name or key cannot be used, or the orchestrator does not answer.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let mut users = Users::default();
    for (entries, of) in [
        (
            &args.orchestrator,
            RedisProcess::Orchestrator as fn(NodeId) -> RedisProcess,
        ),
        (&args.signer, RedisProcess::Signer),
    ] {
        for entry in entries {
            let (name, id) = named_key(entry)?;
            users.add(name, of(id))?;
        }
    }
    let mut namespace = args.namespace;
    if let Some(file) = args.connection.config_file() {
        let (config, _) = Config::load(Some(file))?;
        users.add_own(&config)?;
        namespace.get_or_insert(config.bus.namespace);
    }
    if args.connection.is_named() {
        let client = args.connection.client()?;
        let nodes = client
            .call::<ListNodes>(&admin::ListNodesRequest {})
            .await?;
        for node in nodes.nodes {
            let id = NodeId::parse_openssh_line(&node.public_key).map_err(explain)?;
            users.add_unless_named(&node.name, RedisProcess::Signer(id))?;
        }
    }
    if users.0.is_empty() {
        bail!(
            "name the processes (--orchestrator, --signer), or an orchestrator that knows its nodes (--config)"
        );
    }
    let is_orchestrator =
        |process: &&RedisProcess| matches!(process, RedisProcess::Orchestrator(_));
    if users.0.values().filter(is_orchestrator).count() == 1 {
        eprintln!(
            "only one orchestrator is among these users: if there are others, name them (--orchestrator NAME=KEY), as ACL LOAD \
             deletes users that the file does not have"
        );
    }
    users.add(OPERATOR, RedisProcess::Person)?;
    files::make_folder(&args.passwords)?;
    let namespace = namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    if let Some(problem) = namespace_problem(&namespace) {
        bail!("--namespace: {problem}");
    }
    let mut text = String::from("user default off resetkeys resetchannels -@all");
    for (name, process) in &users.0 {
        let hash = password_hash(&args.passwords, name)?;
        text.push('\n');
        text.push_str(&line(name, *process, &hash, &namespace));
    }
    print_line(text);
    Ok(())
}

/// By name.
#[derive(Default)]
struct Users(BTreeMap<String, RedisProcess>);

impl Users {
    fn add(&mut self, name: &str, process: RedisProcess) -> anyhow::Result<()> {
        let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || !name.chars().all(is_letter) || name == "default" {
            bail!(
                "{name:?} cannot be the name of a user of Redis: use small letters, digits and \"-\" \
                 (--signer NAME=KEY gives a node another name)"
            );
        }
        if name == OPERATOR && process != RedisProcess::Person {
            bail!(
                "{OPERATOR} is the user for people: name the process otherwise (--signer NAME=KEY)"
            );
        }
        if self.0.get(name).is_some_and(|other| *other != process) {
            bail!("two processes are named {name}: give one another name (--signer NAME=KEY)");
        }
        self.0.insert(name.to_owned(), process);
        Ok(())
    }

    /// Adds a process that has not got a name on the command line.
    fn add_unless_named(&mut self, name: &str, process: RedisProcess) -> anyhow::Result<()> {
        if self.0.values().any(|known| *known == process) {
            return Ok(());
        }
        self.add(name, process)
    }

    /// Adds the orchestrator of a configuration.
    fn add_own(&mut self, config: &Config) -> anyhow::Result<()> {
        let path = identities::public_key_path(&config.serve.identity_file());
        let line = std::fs::read_to_string(&path).with_context(|| {
            format!("cannot read {}, which covault serve makes", path.display())
        })?;
        let id = NodeId::parse_openssh_line(&line).map_err(explain)?;
        let name = match config.cluster.name.as_str() {
            "" => "orchestrator",
            name => name,
        };
        self.add_unless_named(name, RedisProcess::Orchestrator(id))
    }
}

fn named_key(entry: &str) -> anyhow::Result<(&str, NodeId)> {
    let (name, key) = entry
        .split_once('=')
        .with_context(|| format!("{entry}: NAME=KEY is expected"))?;
    let id = NodeId::parse_openssh_line(&public_key(key)?).map_err(explain);
    Ok((name, id.with_context(|| entry.to_owned())?))
}

/// The SHA-256 of a user's password in hex, as Redis has it. It stays here when the password is taken to its process, so
/// that the same users are printed again; where there was none, a password is made.
fn password_hash(folder: &Path, name: &str) -> anyhow::Result<String> {
    let (secret, kept) = (
        folder.join(format!("{name}.password")),
        folder.join(format!("{name}.sha256")),
    );
    if !secret.exists() && kept.exists() {
        let text = std::fs::read_to_string(&kept)
            .with_context(|| format!("cannot read {}", kept.display()))?;
        let hash = text.trim();
        if hex::decode(hash).is_ok_and(|bytes| bytes.len() == 32) {
            return Ok(hash.to_owned());
        }
        bail!(
            "{}: is not the SHA-256 of a password; remove it to make a new one",
            kept.display()
        );
    }
    if !secret.exists() {
        eprintln!(
            "made a new password for {name}: bring {} to its process before Redis reads these users",
            secret.display()
        );
    }
    let password = files::secret_or_new(&secret, || new_token(&OsEntropy))?;
    let hash = hex::encode(Sha256::digest(password.expose_secret()));
    files::write_private(&kept, format!("{hash}\n").as_bytes())?;
    Ok(hash)
}

/// The line of `users.acl`. Commands that read and commands that trim are in selectors of their own, so that leave to write
/// to all inboxes is none to read them (docs/decisions/0080-what-deploy-holds.md).
fn line(name: &str, process: RedisProcess, hash: &str, namespace: &str) -> String {
    let mut line = format!("user {name} on #{hash} resetkeys resetchannels -@all");
    let (id, is_orchestrator) = match process {
        RedisProcess::Person => {
            // Who was refused, who is slow. It reads no message and changes nothing but the users, again from the file.
            line.push_str(
                " +ping +hello +info +acl|log +acl|load +acl|whoami +slowlog|get +client|list",
            );
            return line;
        }
        RedisProcess::Signer(id) => (hex::encode(id.0), false),
        RedisProcess::Orchestrator(id) => (hex::encode(id.0), true),
    };
    let bus = format!("covault:{{{namespace}}}");
    let commands = format!("covault:{{{}}}", commands_namespace(namespace));
    // Writing to a String cannot fail.
    let _ = write!(
        line,
        " +ping +hello +time +role +multi +exec (+xadd +expire %W~{bus}:inbox:* %W~{bus}:announcements) \
         (+xread +xrevrange %R~{bus}:inbox:{id} %R~{bus}:announcements) (+xtrim %W~{bus}:inbox:{id})"
    );
    if is_orchestrator {
        // An inbox there is named again with every start of its process.
        let _ = write!(
            line,
            " (+xadd +expire +xread +xrevrange +xtrim ~{commands}:*)"
        );
    }
    line
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    const ID: NodeId = NodeId([7; 32]);

    #[test]
    fn line__should_let_a_process_read_its_own_inbox_alone() {
        let password = hex::encode(Sha256::digest("hunter2"));
        let signer = line("signer-1", RedisProcess::Signer(ID), &password, "staging");
        let own = format!("covault:{{staging}}:inbox:{}", "07".repeat(32));
        assert_eq!(
            signer,
            format!(
                "user signer-1 on #f52fbd32b2b3b86ff88ef6c490628285f482af15ddcb29541f94bcf526a3f6c7 resetkeys \
                 resetchannels -@all +ping +hello +time +role +multi +exec (+xadd +expire \
                 %W~covault:{{staging}}:inbox:* %W~covault:{{staging}}:announcements) (+xread +xrevrange %R~{own} \
                 %R~covault:{{staging}}:announcements) (+xtrim %W~{own})"
            )
        );
        let orchestrator = line("o", RedisProcess::Orchestrator(ID), &password, "staging");
        assert!(
            orchestrator.ends_with(
                " (+xadd +expire +xread +xrevrange +xtrim ~covault:{staging-commands}:*)"
            ),
            "{orchestrator}"
        );
        let person = line(OPERATOR, RedisProcess::Person, &password, "staging");
        assert!(!person.contains('~'), "{person}");
    }

    #[test]
    fn users__should_have_names_of_their_own_that_redis_takes() {
        let mut users = Users::default();
        let other = RedisProcess::Signer(NodeId([8; 32]));
        users.add("vienna", RedisProcess::Signer(ID)).unwrap();
        users
            .add_unless_named("wien", RedisProcess::Signer(ID))
            .unwrap();
        users.add_unless_named("graz", other).unwrap();
        assert_eq!(users.0.keys().collect::<Vec<_>>(), ["graz", "vienna"]);
        // A node chooses its name: it may be anything.
        for name in [
            "",
            "vienna",
            "a b",
            "a\nuser x on",
            "Vienna",
            "default",
            "operator",
            "é",
        ] {
            let third = RedisProcess::Signer(NodeId([9; 32]));
            assert!(users.add_unless_named(name, third).is_err(), "{name:?}");
        }
        assert!(users.add("graz", RedisProcess::Orchestrator(ID)).is_err());
    }

    #[test]
    fn named_key__should_be_refused_where_it_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.pub");
        std::fs::write(&file, "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA").unwrap();
        let short = format!("a={}", file.display());
        for entry in ["a", "a=/none.pub", short.as_str(), "a=ssh-rsa AAAA"] {
            assert!(named_key(entry).is_err(), "{entry}");
        }
        // The base point of Ed25519: not every 32 bytes are a key.
        let mut key = [0x66; 32];
        key[0] = 0x58;
        let good = format!("a={}", NodeId(key).openssh_line(""));
        assert_eq!(named_key(&good).unwrap(), ("a", NodeId(key)));
    }

    #[test]
    fn password__should_be_made_once_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let first = password_hash(folder.path(), "a").unwrap();
        assert_eq!(first, password_hash(folder.path(), "a").unwrap());
        let secret = folder.path().join("a.password");
        let mode = std::fs::metadata(&secret).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&secret).unwrap();
        assert_eq!(hex::encode(Sha256::digest(text.trim())), first);
        // It was taken to its process: its user stays the same.
        std::fs::remove_file(&secret).unwrap();
        assert_eq!(first, password_hash(folder.path(), "a").unwrap());
        assert!(!secret.exists());
        std::fs::write(folder.path().join("a.sha256"), "x").unwrap();
        assert!(password_hash(folder.path(), "a").is_err());
    }
}
