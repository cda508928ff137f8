//! `covault node approver-link`: a link with which a person makes a passkey for the node's own page.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_core::{
    field,
    port::{Clock as _, Entropy as _},
};
use covault_mpc::enrolment_links::EnrolmentLinks;
use zeroize::Zeroizing;

use super::print_line;
use crate::{
    adapters::{OsEntropy, SystemClock},
    config::Config,
    wiring::explain,
};

/// Print a link with which a person makes a passkey on the page of this node (signer.approve_listen).
///
/// The link works once, within 15 minutes; give it to the person by a way that nobody else reads. The page shows the
/// line of the passkey and eight words. The passkey approves nothing before the administrators have compared the words
/// with the person, added the line to the policy (`covault policy approver`), and the vault's rule has it too. Run it on
/// the node's own machine, as root or as the node's user; the node has to be running when the link is opened.
///
/// Example:
///
///   covault node approver-link treasurer@node-1 --config /etc/covault/signer.toml
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// What the passkey is called. What stands before "@" is the person, as rules of approval name them.
    #[arg(value_name = "NAME")]
    name: String,
    /// The node's configuration file. Without it: the defaults, and COVAULT_ variables.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let (config, _) = Config::load_for_signer(args.config.as_deref())?;
    let signer = &config.signer;
    let place = signer.approve_origin()?;
    let place = place.filter(|_| !signer.approve_listen.is_empty());
    let place = place.context(
        "this node serves no page: set signer.approve_listen and signer.approve_origin in its configuration file",
    )?;
    let folder = &signer.data_dir;
    ensure!(
        folder.is_dir(),
        "there is no folder {}: name the node's configuration file with --config",
        folder.display()
    );
    field::label("NAME", &args.name, args.name.len()).map_err(explain)?;
    let mut secret = Zeroizing::new([0; 32]);
    OsEntropy.fill(&mut *secret);
    let links = EnrolmentLinks::of(folder);
    let put = links.put(&secret, &args.name, SystemClock.now_ms());
    put.map_err(explain)?;
    eprintln!(
        "this link makes one passkey {}, within 15 minutes:",
        args.name
    );
    print_line(format_args!(
        "{}/enrol#{}",
        place.origin,
        BASE64_URL_SAFE_NO_PAD.encode(*secret)
    ));
    Ok(())
}
