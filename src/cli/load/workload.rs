//! What is asked for, and whether what comes back is right.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use covault_actors::operations::{CreateWallet, GetWalletInfo};
use covault_core::{
    networks::{ChainData, Network, Payload, VerifiedSignatures},
    schema::wire::{
        self, create_signing_request_request::Type as Kind, get_wallet_info_request::Wallet as By,
        signature_container::sign_response::Signature as Given,
    },
    signature::Signature,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::{cli::client::AdminClient, wiring::explain};

/// No chain has this id: nothing that is signed for it can move anything.
const NO_CHAIN: u64 = u32::MAX as u64;
const NAME: &str = "covault load";
/// Calls at the same time while wallets are prepared.
const AT_ONCE: usize = 8;

/// What a run signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LoadScenario {
    /// Messages by Ed25519 keys (rawMessage).
    Ed25519,
    /// Messages by ECDSA keys (rawMessage).
    Ecdsa,
    /// EVM transfers, of all wallets in turns.
    Transfers,
    /// A message by a key of each of the eight networks in turns.
    Mixed,
    /// As ecdsa, and each request is read ten times (getSigningRequestDetails).
    Reads,
    /// As ecdsa, and each request is asked for twice at the same time under one idempotency key.
    Retries,
}

impl fmt::Display for LoadScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ed25519 => "ed25519",
            Self::Ecdsa => "ecdsa",
            Self::Transfers => "transfers",
            Self::Mixed => "mixed",
            Self::Reads => "reads",
            Self::Retries => "retries",
        })
    }
}

impl LoadScenario {
    fn networks(self) -> &'static [Network] {
        match self {
            Self::Ed25519 => &[Network::Solana],
            Self::Ecdsa | Self::Transfers | Self::Reads | Self::Retries => &[Network::Evm],
            Self::Mixed => &Network::ALL,
        }
    }

    /// How often each request is read.
    pub fn reads(self) -> usize {
        match self {
            Self::Reads => 10,
            _ => 0,
        }
    }

    /// Whether each request is asked for twice.
    pub fn repeats(self) -> bool {
        self == Self::Retries
    }
}

/// A wallet that signs.
struct LoadWallet {
    network: Network,
    address: String,
    public_key: Vec<u8>,
}

/// The requests of a run, each another one.
pub struct LoadWorkload {
    scenario: LoadScenario,
    vault: String,
    wallets: Vec<LoadWallet>,
    /// Milliseconds since 1970: tells the requests of this run from those of others.
    run: u64,
    next: AtomicU64,
}

/// One of them.
pub struct LoadRequest {
    wallet: usize,
    kind: Kind,
    /// The message itself.
    pub message: wire::CreateSigningRequestRequest,
    /// A key that no other request has.
    pub idempotency_key: String,
}

impl LoadWorkload {
    /// Finds the wallets, or makes them.
    ///
    /// # Errors
    /// When the service refuses or does not answer.
    pub async fn prepare(
        client: &AdminClient,
        vault: &str,
        scenario: LoadScenario,
        wallets: u32,
    ) -> anyhow::Result<Self> {
        // In turns: of each network one, then the next of each.
        let wanted = (0..wallets).flat_map(|number| {
            let networks = scenario.networks().iter();
            networks.map(move |network| (*network, number))
        });
        let wallets = stream::iter(wanted)
            .map(|(network, number)| wallet(client, vault, network, number))
            .buffered(AT_ONCE);
        let wallets = wallets.try_collect().await?;
        #[expect(
            clippy::disallowed_methods,
            reason = "a name for this run, on the machine of whoever runs it"
        )]
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        Ok(Self {
            scenario,
            vault: vault.to_owned(),
            wallets,
            run: u64::try_from(now.as_millis())?,
            next: AtomicU64::new(0),
        })
    }

    /// What is signed.
    pub fn scenario(&self) -> LoadScenario {
        self.scenario
    }

    /// The next request; none where there are no wallets.
    pub fn next(&self) -> Option<LoadRequest> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let place = usize::try_from(number).ok()? % self.wallets.len().max(1);
        let wallet = self.wallets.get(place)?;
        let text = format!("{NAME} {} {number}", self.run);
        let kind = match self.scenario {
            LoadScenario::Mixed => message_of(wallet, &text),
            LoadScenario::Transfers => {
                let turn = number / self.wallets.len().max(1) as u64;
                transfer(wallet, self.run.saturating_mul(1_000).saturating_add(turn))
            }
            LoadScenario::Ed25519
            | LoadScenario::Ecdsa
            | LoadScenario::Reads
            | LoadScenario::Retries => raw(wallet, &text),
        };
        Some(LoadRequest {
            wallet: place,
            message: wire::CreateSigningRequestRequest {
                r#type: Some(kind.clone()),
                vault_uuid: Some(self.vault.clone()),
                notes: Some(NAME.to_owned()),
                ..Default::default()
            },
            kind,
            idempotency_key: format!("{NAME} {} {number}", self.run).replace(' ', "-"),
        })
    }

    /// Whether these are signatures of just what was asked for, by the wallet's key.
    ///
    /// # Errors
    /// What is wrong.
    pub fn verify(
        &self,
        request: &LoadRequest,
        answer: wire::ExecuteSigningRequestsResponse,
    ) -> anyhow::Result<()> {
        let wallet = self.wallets.get(request.wallet);
        let wallet = wallet.context("the request is of no wallet")?;
        let payload = Payload::parse(&request.kind).map_err(explain)?;
        let rules = wallet.network.rules();
        let unsigned = rules.build(&payload, &ChainData::Nothing, &wallet.public_key);
        let unsigned = unsigned.map_err(explain)?;
        let given = answer.signatures.context("the answer has no signatures")?;
        let signatures = given.signatures.into_iter().map(signature);
        let signatures = signatures.collect::<anyhow::Result<Vec<_>>>()?;
        VerifiedSignatures::verify(&wallet.public_key, &unsigned.signing, signatures)
            .map_err(explain)?;
        Ok(())
    }
}

/// The wallet of this number, which the vault has from an earlier run, or a new one.
async fn wallet(
    client: &AdminClient,
    vault: &str,
    network: Network,
    number: u32,
) -> anyhow::Result<LoadWallet> {
    let reference = format!("covault-load/{vault}/{}/{number}", network.name());
    let known = wire::GetWalletInfoRequest {
        wallet: Some(By::Ref(reference.clone())),
    };
    // Whatever is wrong with it, the next call says what.
    let known = client.call::<GetWalletInfo>(&known).await.ok();
    let found = known.and_then(|known| known.details);
    let found = match found {
        Some(found) => found,
        None => {
            let request = wire::CreateWalletRequest {
                vault_uuid: vault.to_owned(),
                network_type: network.to_wire().into(),
                name: NAME.to_owned(),
                r#ref: reference,
                ..Default::default()
            };
            let made = client.call::<CreateWallet>(&request).await?;
            made.details.context("the response has no wallet")?
        }
    };
    let owns = network.rules().owns(&found.public_key, &found.address);
    anyhow::ensure!(
        owns.map_err(explain)?,
        "the address {} is not the one of the wallet's public key",
        found.address
    );
    Ok(LoadWallet {
        network,
        address: found.address,
        public_key: found.public_key.to_vec(),
    })
}

fn raw(wallet: &LoadWallet, text: &str) -> Kind {
    Kind::RawMessage(wire::RawMessage {
        from: wallet.address.clone(),
        content: text.as_bytes().to_vec(),
        ecdsa_hash_function: wire::EcdsaHashFunction::Sha256.into(),
    })
}

/// A message as wallets of its network sign it; where there is none, its bytes.
fn message_of(wallet: &LoadWallet, text: &str) -> Kind {
    let (from, content) = (wallet.address.clone(), text.as_bytes().to_vec());
    match wallet.network {
        Network::Evm => Kind::EvmMessage(wire::EvmMessage {
            chain_id: NO_CHAIN,
            from,
            r#type: wire::evm_message::Type::PersonalSign.into(),
            content,
        }),
        Network::Solana => Kind::SolanaMessage(wire::SolanaMessage {
            from,
            r#type: wire::solana_message::Type::Default.into(),
            content,
        }),
        Network::Aptos => Kind::AptosMessage(wire::AptosMessage {
            from,
            r#type: wire::aptos_message::Type::Default.into(),
            content: Some(wire::aptos_message::Message {
                message: text.to_owned(),
                nonce: "0".to_owned(),
                ..Default::default()
            }),
        }),
        Network::Sui => Kind::SuiMessage(wire::SuiMessage {
            from,
            r#type: wire::sui_message::Type::Default.into(),
            content,
        }),
        // They have no form of their own, or one with a time in it that the answer does not tell.
        _ => raw(wallet, text),
    }
}

/// One unit to itself.
fn transfer(wallet: &LoadWallet, nonce: u64) -> Kind {
    Kind::EvmSendNative(wire::EvmSendNative {
        chain_id: NO_CHAIN,
        from: wallet.address.clone(),
        to: wallet.address.clone(),
        value: "1".to_owned(),
        gas_fee: Some(wire::EvmGas {
            max_fee: Some("1".to_owned()),
            max_priority_fee: Some("1".to_owned()),
            gas_limit: Some("21000".to_owned()),
            ..Default::default()
        }),
        nonce: i64::try_from(nonce).ok(),
    })
}

fn signature(given: wire::signature_container::SignResponse) -> anyhow::Result<Signature> {
    match given.signature.context("a signature is empty")? {
        Given::EcdsaSignature(given) => Ok(Signature::Ecdsa {
            r: scalar(&given.r)?,
            s: scalar(&given.s)?,
            y_parity: given.v.parse().context("V is not a number")?,
        }),
        Given::EddsaSignature(bytes) => {
            let halves = bytes.split_first_chunk::<32>();
            let halves = halves.and_then(|(r, s)| Some((*r, <[u8; 32]>::try_from(s).ok()?)));
            let (r, s) = halves.context("an Ed25519 signature is not of 64 bytes")?;
            Ok(Signature::Ed25519 { r, s })
        }
    }
}

fn scalar(text: &str) -> anyhow::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let digits = text.strip_prefix("0x").context("R or S has no 0x")?;
    hex::decode_to_slice(digits, &mut bytes).context("R or S is not of 32 bytes")?;
    Ok(bytes)
}
