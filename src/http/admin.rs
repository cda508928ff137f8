//! `/admin/v1`: what operators do. Plain JSON, not part of the platform schema.

pub mod audit;
pub mod backup;
pub mod life;
pub mod sweep;
pub mod tokens;

use std::sync::Arc;

use axum::Router;
use covault_actors::gateway::{Command, Query, Receipt, VaultView, View};
use covault_core::{
    fault::{Class, Fault},
    order::NodeId,
    scheme::Scheme,
    signature::Curve,
};
use covault_mpc::{backend, identity};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    Answer, Api, Area, Call, Route,
    nodes::{self, Nothing},
};
use crate::api::unexpected;

/// The routes.
pub(super) fn routes(api: &Arc<Api>) -> Router {
    let route = Route {
        api: Arc::clone(api),
        area: Area::Admin,
        operation: None,
        takes_idempotency_key: false,
    };
    Router::new()
        .route("/admin/v1/createVault", route.clone().post(create_vault))
        .route("/admin/v1/listVaults", route.clone().post(list_vaults))
        .merge(life::routes(api))
        .merge(tokens::routes(&route))
        .merge(sweep::routes(&route))
        .merge(audit::routes(&route))
        .merge(backup::routes(&route))
        .merge(nodes::routes(&route))
}

/// A vault to be made.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateVault {
    /// Name, unique. Repeating a name answers the vault that has it.
    pub name: String,
    /// Signers needed for a signature; 2 or more.
    pub threshold: u16,
    /// OpenSSH lines of the nodes that get a share.
    pub signers: Vec<String>,
    /// `dkls23` (the default) or `cggmp24`, which this build may lack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecdsa_backend: Option<String>,
    /// Whether a vault of this name that has not all its keys yet makes those that it lacks like
    /// this, whatever it was told before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
}

/// A vault.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Vault {
    pub uuid: String,
    pub name: String,
    pub threshold: u16,
    /// OpenSSH lines.
    pub signers: Vec<String>,
    /// `dkls23` or `cggmp24`.
    #[serde(default)]
    pub ecdsa_backend: String,
    /// Both root keys exist.
    pub ready: bool,
    /// Why there will be no keys.
    pub failed_reason: Option<String>,
    /// Why there are no keys yet, where they are tried again.
    #[serde(default)]
    pub problem: Option<String>,
    /// Its root keys, with who holds their shares.
    #[serde(default)]
    pub keys: Vec<life::Key>,
}

/// Answer of createVault.
#[derive(Debug, Serialize, Deserialize)]
pub struct VaultAnswer {
    pub vault: Vault,
}

/// Answer of listVaults.
#[derive(Debug, Serialize, Deserialize)]
pub struct VaultsAnswer {
    pub vaults: Vec<Vault>,
}

async fn create_vault(call: Call) -> Result<Answer, Fault> {
    let request: CreateVault = decode(&call.body)?;
    let CreateVault {
        name,
        threshold,
        signers,
        ecdsa_backend: ecdsa,
        replace,
    } = request;
    let signers = parse_lines("signers", &signers)?;
    let ecdsa = ecdsa_backend(ecdsa.as_deref())?;
    let command = if replace {
        Command::ReplaceSigners {
            name,
            threshold,
            signers,
            ecdsa,
        }
    } else {
        Command::CreateVault {
            name,
            threshold,
            signers,
            ecdsa,
        }
    };
    let done = call.api.gateway.submit(&call.caller, command, None).await?;
    match done.receipt {
        Receipt::Vault(view) => encode(&VaultAnswer { vault: vault(view) }),
        other => Err(unexpected(&other)),
    }
}

async fn list_vaults(call: Call) -> Result<Answer, Fault> {
    let Nothing {} = decode(&call.body)?;
    match call.api.gateway.view(&call.caller, Query::Vaults).await? {
        View::Vaults(views) => encode(&VaultsAnswer {
            vaults: views.into_iter().map(vault).collect(),
        }),
        other => Err(unexpected(&other)),
    }
}

/// Submits a command, without an idempotency key.
async fn submit(call: &Call, command: Command) -> Result<Receipt, Fault> {
    let done = call.api.gateway.submit(&call.caller, command, None).await?;
    Ok(done.receipt)
}

/// The scheme of a vault's ECDSA key. It is refused here when this build lacks it: the signers'
/// builds are expected to have what the orchestrator's has.
fn ecdsa_backend(name: Option<&str>) -> Result<Scheme, Fault> {
    let Some(name) = name else {
        return Ok(Scheme::default_of(Curve::Secp256k1));
    };
    let field = "ecdsaBackend";
    let scheme = Scheme::parse(name)
        .filter(|scheme| scheme.curve() == Curve::Secp256k1)
        .ok_or_else(|| Fault::field(field, "must be dkls23 or cggmp24"))?;
    backend::of(scheme).map_err(|_| Fault::field(field, backend::MISSING))?;
    Ok(scheme)
}

fn parse_lines(field: &str, lines: &[String]) -> Result<Vec<NodeId>, Fault> {
    lines
        .iter()
        .enumerate()
        .map(|(index, line)| {
            identity::parse_openssh_line(line).map_err(|error| {
                Fault::field(
                    format_args!("{field}[{index}]"),
                    "must be an OpenSSH line: ssh-ed25519 AAAA...",
                )
                .caused_by(error)
            })
        })
        .collect()
}

fn vault(view: VaultView) -> Vault {
    let VaultView {
        id,
        name,
        threshold,
        signers,
        ready,
        failed_reason,
        problem,
        keys,
    } = view;
    let mut schemes = keys.iter().map(|key| key.scheme);
    let ecdsa = schemes.find(|scheme| scheme.curve() == Curve::Secp256k1);
    Vault {
        uuid: id.to_string(),
        name,
        threshold,
        signers: signers
            .iter()
            .map(|id| identity::openssh_line(id, ""))
            .collect(),
        ecdsa_backend: ecdsa.map_or("", Scheme::name).to_owned(),
        ready,
        failed_reason,
        problem,
        keys: keys.into_iter().map(life::key).collect(),
    }
}

pub(super) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let request = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| wrong(&error.path().to_string(), error.inner()))?;
    json.end().map_err(|error| wrong(".", &error))?;
    Ok(request)
}

/// Names the field. serde tells of fields that are missing or unknown in its sentence alone.
fn wrong(path: &str, error: &serde_json::Error) -> Fault {
    let sentence = error.to_string();
    if !error.is_data() {
        return Fault::new(Class::Invalid, format!("malformed JSON: {sentence}"));
    }
    let sentence = sentence
        .rsplit_once(" at line ")
        .map_or(sentence.as_str(), |(sentence, _)| sentence);
    let quoted = |start: &str| {
        let rest = sentence.strip_prefix(start)?;
        rest.split_once('`').map(|(name, _)| name)
    };
    match (quoted("missing field `"), quoted("unknown field `")) {
        (Some(name), _) => Fault::field(name, "is required"),
        (_, Some(name)) => Fault::field(name, "unknown field"),
        _ if path == "." => Fault::new(Class::Invalid, format!("malformed request: {sentence}")),
        _ => Fault::field(path, sentence),
    }
}

pub(super) fn encode<T: Serialize>(answer: &T) -> Result<Answer, Fault> {
    serde_json::to_string(answer)
        .map(Answer::new)
        .map_err(Fault::bug)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn decode__should_name_the_field_that_is_wrong() {
        let says = |body: &str, start: &str| {
            let fault = decode::<CreateVault>(body.as_bytes()).unwrap_err();
            assert_eq!(fault.class(), &Class::Invalid);
            assert!(fault.message().starts_with(start), "{body}: {fault}");
        };
        says(
            r#"{"name": "a", "threshold": "2", "signers": []}"#,
            "threshold: ",
        );
        says(
            r#"{"name": "a", "threshold": 2, "signers": ["x", 3]}"#,
            "signers[1]: ",
        );
        says(
            r#"{"name": "a", "threshold": 70000, "signers": []}"#,
            "threshold: ",
        );
        says(r#"{"name": "a", "signers": []}"#, "threshold: is required");
        says(
            r#"{"name": "a", "threshold": 2, "signers": [], "bogus": 1}"#,
            "bogus: ",
        );
        says(r#"{"name": "a""#, "malformed JSON: ");
        says("[]", "malformed request: ");
        says(
            r#"{"name": "a", "threshold": 2, "signers": []} x"#,
            "malformed JSON: ",
        );
        let request: CreateVault =
            decode(br#"{"name": "a", "threshold": 2, "signers": []}"#).unwrap();
        assert!(!request.replace && request.ecdsa_backend.is_none());
    }
}
