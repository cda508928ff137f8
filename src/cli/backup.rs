//! `covault backup`: the orchestrator's own store, to a file and back.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufReader, BufWriter, Read, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
};

use age::{Decryptor, Encryptor};
use anyhow::{Context as _, bail};
use covault_actors::{
    backup::{self, BackupContents, BackupHeader, BackupWriter},
    operations::{BeginBackup, GetBackupPart, LetClientsIn},
    store::RawRow,
};
use covault_core::{audit::KnownHeads, port::Clock as _, schema::admin};
use covault_mpc::shares::backup::{identities, recipients};
use zeroize::Zeroizing;

use super::{
    CommandFinding, answer,
    audit::{print_heads, read_heads},
    client::{AdminClient, ConnectionArgs},
    print_line,
    progress::ProgressSpinner,
};
use crate::{
    adapters::SystemClock,
    config::{Config, StoreKind},
    files,
    wiring::{explain, store, store_path},
};

/// Backups of the orchestrator's store.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Create(CreateBackupArgs),
    Verify(VerifyBackupArgs),
    Restore(RestoreBackupArgs),
    /// Admit clients again after a restore, once you have resolved everything that they were told since the backup.
    Resume {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: ConnectionArgs,
    },
}

/// Back up the store while the service runs: one state of all of it, in one file.
///
/// The file contains no key and no share, but every payload and address, and hashes of tokens. It is encrypted to age
/// recipients: create an identity on another machine (age-keygen), and keep it there.
#[derive(Debug, clap::Args)]
pub struct CreateBackupArgs {
    /// The file, which must be new (mode 0600).
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// An age recipient (age1...). May be repeated: each of them can read it.
    #[arg(
        long = "recipient",
        value_name = "age1...",
        required_unless_present = "plaintext"
    )]
    recipients: Vec<String>,
    /// Do not encrypt it.
    #[arg(long, conflicts_with = "recipients")]
    plaintext: bool,
    #[command(flatten)]
    target: ConnectionArgs,
}

/// Check that a backup is complete, and that the audit log in it is intact.
///
/// Prints the heads of the audit log's chains, as `covault audit verify` does. Exit code 3: the
/// backup can be read, and its audit log is broken.
#[derive(Debug, clap::Args)]
pub struct VerifyBackupArgs {
    #[command(flatten)]
    from: BackupFileArgs,
    /// A file with heads of the audit log that you kept. May be repeated.
    #[arg(long, value_name = "FILE")]
    expect: Vec<PathBuf>,
}

/// Restore a backup into a store that is new or empty, on which no orchestrator runs.
///
/// No process may still use the store that was backed up. Nothing that may have happened since the backup is
/// repeated: requests that were unsigned then end, and wallet numbers are skipped. The next start refuses clients
/// until `covault backup resume`; docs/backup-of-the-store.md lists what to do first.
#[derive(Debug, clap::Args)]
pub struct RestoreBackupArgs {
    #[command(flatten)]
    from: BackupFileArgs,
    /// The orchestrator's configuration, which says where the new store is (serve.data_dir, or [store]).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// A backup.
#[derive(Debug, clap::Args)]
struct BackupFileArgs {
    /// The backup.
    #[arg(value_name = "BACKUP")]
    file: PathBuf,
    /// age identity files ("AGE-SECRET-KEY-1..."), if it is encrypted.
    #[arg(long = "identity", value_name = "FILE")]
    identities: Vec<PathBuf>,
}

impl BackupFileArgs {
    /// What the file holds, decrypted.
    fn open(&self) -> anyhow::Result<Box<dyn Read>> {
        let shown = self.file.display();
        let file = File::open(&self.file).with_context(|| format!("cannot read {shown}"))?;
        let mut file = BufReader::new(file);
        let encrypted = io::BufRead::fill_buf(&mut file)?.starts_with(b"age-encryption.org/");
        match (encrypted, self.identities.is_empty()) {
            (false, _) => return Ok(Box::new(file)),
            (true, true) => bail!("{shown} is encrypted: name the age identity with --identity"),
            (true, false) => {}
        }
        let mut keys = Vec::new();
        for path in &self.identities {
            let text = std::fs::read_to_string(path)
                .map(Zeroizing::new)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let found = identities(&text);
            keys.extend(found.map_err(explain)?);
        }
        let decryptor = Decryptor::new_buffered(file)
            .map_err(|error| anyhow::anyhow!("{shown} cannot be decrypted: {error}"))?;
        let plain = decryptor
            .decrypt(keys.iter().map(|key| key as &dyn age::Identity))
            .map_err(|error| anyhow::anyhow!("{shown} cannot be decrypted: {error}"))?;
        Ok(Box::new(BufReader::new(plain)))
    }
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(args) => create(args).await,
        Command::Verify(args) => verify(&args),
        Command::Restore(args) => restore(&args).await,
        Command::Resume { json, target } => {
            let request = admin::LetClientsInRequest {};
            let let_in = target.client()?.call::<LetClientsIn>(&request).await?;
            answer(json, &let_in, |_| "the service takes requests again")
        }
    }
}

async fn create(args: CreateBackupArgs) -> anyhow::Result<()> {
    let to = recipients(&args.recipients).map_err(explain)?;
    let client = args.target.client()?;
    let shown = args.out.display();
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&args.out)
        .with_context(|| format!("cannot make {shown}"))?;
    let file = BufWriter::new(file);
    let written = if args.plaintext {
        write_plain(&client, file).await
    } else {
        write_encrypted(&client, file, &to).await
    };
    let written = written.and_then(|kept| Ok((kept, files::sync_folder_of(&args.out)?)));
    if written.is_err() {
        // Half a backup is of no use, and would be in the way of the next.
        let _ = std::fs::remove_file(&args.out);
    }
    let (kept, ()) = written.with_context(|| format!("{shown} was not written"))?;
    print_line(shown);
    // Only what is on the disk counts as a backup.
    let told = client.call::<GetBackupPart>(&kept).await;
    told.context("the backup is complete, but the service could not be told that it was made")?;
    Ok(())
}

async fn write_plain(
    client: &AdminClient,
    file: BufWriter<File>,
) -> anyhow::Result<admin::GetBackupPartRequest> {
    let (file, kept) = write(client, file).await?;
    finish(file)?;
    Ok(kept)
}

async fn write_encrypted(
    client: &AdminClient,
    file: BufWriter<File>,
    to: &[age::x25519::Recipient],
) -> anyhow::Result<admin::GetBackupPartRequest> {
    let to = to.iter().map(|one| one as &dyn age::Recipient);
    let encryptor = Encryptor::with_recipients(to).context("cannot encrypt")?;
    let out = encryptor.wrap_output(file).context("cannot encrypt")?;
    let (out, kept) = write(client, out).await?;
    finish(out.finish()?)?;
    Ok(kept)
}

fn finish(file: BufWriter<File>) -> anyhow::Result<()> {
    Ok(file.into_inner()?.sync_all()?)
}

/// Writes a backup of a running service. Gives the request as well that says that it was kept.
async fn write<W: Write>(
    client: &AdminClient,
    to: W,
) -> anyhow::Result<(W, admin::GetBackupPartRequest)> {
    let request = admin::BeginBackupRequest {};
    let begun = client.call::<BeginBackup>(&request).await?;
    let begin = BackupHeader {
        at_ms: begun.at_ms,
        version: begun.version,
    };
    let mut writer = BackupWriter::start(to, begin)?;
    let progress = ProgressSpinner::start("backup: reading the store");
    let (mut count, mut bytes) = (0_usize, 0_usize);
    let mut request = admin::GetBackupPartRequest {
        backup: begun.backup,
        number: 0,
    };
    loop {
        let rows = client.call::<GetBackupPart>(&request).await?.rows;
        request.number = request.number.saturating_add(1);
        if rows.is_empty() {
            break;
        }
        let row = |row: admin::StoreRow| {
            anyhow::Ok(RawRow {
                space: row.space.try_into().context("a row of no key space")?,
                key: row.key,
                value: row.value,
            })
        };
        let sizes = rows
            .iter()
            .map(|row| row.key.len().saturating_add(row.value.len()));
        bytes = sizes.fold(bytes, usize::saturating_add);
        count = count.saturating_add(rows.len());
        progress.count(format!(
            "backup: {count} rows, {} KiB",
            bytes.div_ceil(1024)
        ));
        let rows = rows.into_iter().map(row);
        writer.rows(rows.collect::<Result<_, _>>()?)?;
    }
    progress.next(format!(
        "backup: {count} rows, {} KiB, all of it",
        bytes.div_ceil(1024)
    ));
    Ok((writer.end()?, request))
}

fn verify(args: &VerifyBackupArgs) -> anyhow::Result<()> {
    let mut expected = KnownHeads::new();
    for path in &args.expect {
        read_heads(path, &mut expected)?;
    }
    let contents = check(&args.from, expected)?;
    let broken = print_heads(&contents.audit);
    print_summary(&contents);
    if broken > 0 {
        let alarm = format!("the audit log in the backup is broken: {broken} problems");
        return Err(CommandFinding::alarm(alarm).into());
    }
    Ok(())
}

fn check(from: &BackupFileArgs, expected: KnownHeads) -> anyhow::Result<BackupContents> {
    backup::check(from.open()?, expected)
        .map_err(explain)
        .with_context(|| from.file.display().to_string())
}

fn print_summary(contents: &BackupContents) {
    let BackupContents {
        begin: BackupHeader { at_ms, version },
        rows,
        vaults,
        wallets,
        requests,
        live,
        audit: _,
    } = contents;
    let seconds = i64::try_from(at_ms / 1000).unwrap_or(i64::MAX);
    let time = prost_types::Timestamp { seconds, nanos: 0 };
    eprintln!(
        "made at {time} by version {version}: {rows} rows, {vaults} vaults, {wallets} wallets, {requests} requests \
         ({live} open)"
    );
}

async fn restore(args: &RestoreBackupArgs) -> anyhow::Result<()> {
    // All of it is looked at before anything is written.
    let contents = check(&args.from, KnownHeads::new())?;
    print_summary(&contents);
    let (config, _) = Config::load(args.config.as_deref())?;
    let folder = &config.serve.data_dir;
    let _folder_lock = files::lock_folder(folder)?;
    let (place, new) = match config.store.kind {
        StoreKind::Redb => {
            let path = store_path(&config.serve);
            (path.display().to_string(), !path.exists())
        }
        StoreKind::Postgres => ("PostgreSQL".to_owned(), false),
    };
    let restored = restore_into(&config, &args.from).await;
    if restored.is_err() && new {
        // Nothing starts on half a store: it need not stay.
        let _ = std::fs::remove_file(store_path(&config.serve));
    }
    restored.with_context(|| format!("nothing was restored into {place}"))?;
    eprintln!(
        "restored. Start the service; it refuses clients until `covault backup resume`. First do what \
         docs/backup-of-the-store.md lists"
    );
    print_line(place);
    Ok(())
}

async fn restore_into(config: &Config, from: &BackupFileArgs) -> anyhow::Result<()> {
    let store = store(config, true).await?;
    backup::restore(&*store, from.open()?, SystemClock.now_ms())
        .await
        .map_err(explain)
        .with_context(|| format!("{} was not restored", from.file.display()))?;
    Ok(())
}
