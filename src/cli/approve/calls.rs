//! The calls of one command, each about requests of one vault. One that fails holds up no other.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context as _, ensure};
use covault_actors::operations::{ApproveSigningRequests, RejectSigningRequests};
use covault_core::{
    approval::{ApprovalProof, MAX_LIST, Rejection, rejections_challenge},
    ids::{RequestId, VaultId},
    schema::wire,
};

use super::{ssh_signature, visible};
use crate::{
    approving::{RequestToApprove, calls},
    cli::{answer_json, client::AdminClient, print_line},
    wiring::explain,
};

/// What became of the requests of one command.
#[derive(Default)]
pub(super) struct CallResults {
    done: usize,
}

impl CallResults {
    /// Says what became of each, unless the answer itself is shown. Each stands for itself.
    fn add(&mut self, results: &[wire::SigningRequestResult], done: &str, json: bool) {
        for result in results {
            let uuid = visible(&result.uuid);
            if let Some(error) = &result.error {
                eprintln!("{uuid}  not {done}: {}", visible(&error.message));
                continue;
            }
            self.done = self.done.saturating_add(1);
            match (done, result.remaining_approval_count) {
                _ if json => {}
                ("approved", 0) => {
                    print_line(format_args!("{uuid}  approved; the signers sign it next"))
                }
                ("approved", missing) => {
                    print_line(format_args!(
                        "{uuid}  approved; {missing} more to approve it"
                    ));
                }
                _ => print_line(format_args!("{uuid}  {done}")),
            }
        }
    }

    /// # Errors
    /// When not all of them are done.
    pub(super) fn end(self, all: usize, done: &str) -> anyhow::Result<()> {
        let missing = all.saturating_sub(self.done);
        ensure!(missing == 0, "{missing} of {all} requests were not {done}");
        Ok(())
    }
}

/// Says of the requests of a call that it has failed. Without an answer they may be done anyway.
fn failed(uuids: &[String], done: &str, error: &anyhow::Error) {
    let error = visible(&format!("{error:#}"));
    for uuid in uuids {
        eprintln!("{}  not known to be {done}: {error}", visible(uuid));
    }
}

/// Brings the approval of all to their vaults. `list` is empty for a single one.
pub(super) async fn approve(
    client: &AdminClient,
    all: &[RequestToApprove],
    list: &[[u8; 32]],
    proof: &wire::PersonProof,
    json: bool,
) -> anyhow::Result<CallResults> {
    let mut results = CallResults::default();
    for ((most_fee, valid_until_ms), group) in calls(all) {
        let request = wire::ApproveSigningRequestsRequest {
            uuids: group.iter().map(|it| it.uuid.clone()).collect(),
            approval: Some(wire::Approval {
                most_fee: most_fee.to_string(),
                valid_until_ms,
                list: list.iter().map(|id| id.to_vec()).collect(),
                proof: Some(proof.clone()),
            }),
        };
        match client.call::<ApproveSigningRequests>(&request).await {
            Ok(answer) => {
                results.add(&answer.results, "approved", json);
                if json {
                    answer_json(&answer)?;
                }
            }
            Err(error) => failed(&request.uuids, "approved", &error),
        }
    }
    Ok(results)
}

/// How rejections are signed.
#[derive(Default)]
pub(super) struct RejectionSigner<'a> {
    /// With this key; none: they are in the name of the token.
    pub(super) key: Option<&'a Path>,
    /// Where the rejection is written before the service is called.
    pub(super) out: Option<&'a Path>,
}

impl RejectionSigner<'_> {
    fn sign(
        &self,
        vault: VaultId,
        requests: &[RequestId],
    ) -> anyhow::Result<Option<wire::PersonProof>> {
        let Some(key) = self.key else {
            return Ok(None);
        };
        let challenge = rejections_challenge(vault, requests).map_err(explain)?;
        let signature = ssh_signature(key, &challenge)?;
        if let Some(out) = self.out {
            let rejection = Rejection {
                vault,
                requests: requests.to_vec(),
                proof: ApprovalProof::Ssh(signature.clone()),
            };
            std::fs::write(out, serde_json::to_string_pretty(&rejection)?)
                .with_context(|| format!("cannot write {}", out.display()))?;
        }
        Ok(Some(wire::PersonProof {
            r#type: Some(wire::person_proof::Type::Ssh(signature)),
        }))
    }
}

/// Rejects those of each vault, with a signature for each call.
pub(super) async fn reject(
    client: &AdminClient,
    vaults: &BTreeMap<VaultId, Vec<RequestId>>,
    by: &RejectionSigner<'_>,
    json: bool,
) -> anyhow::Result<CallResults> {
    let mut results = CallResults::default();
    for (vault, ids) in vaults {
        for ids in ids.chunks(MAX_LIST) {
            let mut request = wire::RejectSigningRequestsRequest {
                uuids: ids.iter().map(ToString::to_string).collect(),
                rejection: None,
                reason: String::new(),
            };
            let called = match by.sign(*vault, ids) {
                Ok(rejection) => {
                    request.rejection = rejection;
                    client.call::<RejectSigningRequests>(&request).await
                }
                Err(error) => Err(error),
            };
            match called {
                Ok(answer) => {
                    results.add(&answer.results, "rejected", json);
                    if json {
                        answer_json(&answer)?;
                    }
                }
                Err(error) => failed(&request.uuids, "rejected", &error),
            }
        }
    }
    Ok(results)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::http::StatusCode;
    use covault_core::{
        approval::{Approval, ApprovalTerms},
        networks::Network,
        schema::json,
    };

    use super::*;
    use crate::cli::client::PlatformArgs;

    /// A service that fails calls which name this request, and how many requests each call has named.
    async fn service(fails: RequestId) -> (AdminClient, Arc<Mutex<Vec<usize>>>) {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let answer = move |body: String| {
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            let uuids = body["uuids"].as_array().unwrap().iter();
            let uuids: Vec<_> = uuids.map(|it| it.as_str().unwrap().to_owned()).collect();
            seen.lock().unwrap().push(uuids.len());
            let answer = if uuids.contains(&fails.to_string()) {
                let problem = serde_json::json!({"error": {"message": "the store is away"}});
                (StatusCode::SERVICE_UNAVAILABLE, problem.to_string())
            } else {
                let done = |uuid| wire::SigningRequestResult {
                    uuid,
                    ..Default::default()
                };
                // That of an approval is the same.
                let answer = wire::RejectSigningRequestsResponse {
                    error: None,
                    results: uuids.into_iter().map(done).collect(),
                };
                (StatusCode::OK, json::encode(&answer).unwrap())
            };
            async move { answer }
        };
        let router = axum::Router::new().fallback(answer);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let _ = rustls::crypto::ring::default_provider().install_default();
        let token = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(token.path(), "token").unwrap();
        let client = PlatformArgs::new(url, token.path().to_owned()).client();
        (client.unwrap(), calls)
    }

    fn request(number: u8) -> RequestId {
        RequestId::from_bytes([number; 16])
    }

    #[tokio::test]
    async fn approve__should_go_on_with_other_vaults_when_the_call_about_one_fails() {
        let asked = |vault: u8, number: u8| RequestToApprove {
            uuid: request(number).to_string(),
            approval: Approval::new(
                VaultId::from_bytes([vault; 16]),
                &[2; 33],
                request(number),
                Network::Evm,
                "0x",
                b"payload",
                ApprovalTerms {
                    most_fee: 7,
                    valid_until_ms: 8,
                },
            ),
            pays_on: None,
            shown: String::new(),
        };
        let all = [asked(1, 1), asked(1, 2), asked(2, 3), asked(3, 4)];
        for (fails, done) in [(1, 2), (3, 3), (9, 4)] {
            let (client, calls) = service(request(fails)).await;
            let proof = wire::PersonProof::default();
            let results = approve(&client, &all, &[], &proof, true).await.unwrap();
            assert_eq!(results.done, done);
            assert_eq!(*calls.lock().unwrap(), [2, 1, 1]);
            assert_eq!(results.end(4, "approved").is_ok(), done == 4);
        }
    }

    #[tokio::test]
    async fn reject__should_make_calls_of_a_hundred_and_go_on_when_one_fails() {
        let vaults = [(1, (0..=200).collect::<Vec<u8>>()), (2, vec![201])];
        let vaults = vaults.map(|(vault, numbers)| {
            let ids = numbers.into_iter().map(request).collect();
            (VaultId::from_bytes([vault; 16]), ids)
        });
        let vaults = BTreeMap::from(vaults);
        for (fails, done) in [(0, 102), (200, 201), (250, 202)] {
            let (client, calls) = service(request(fails)).await;
            let by = RejectionSigner::default();
            let results = reject(&client, &vaults, &by, true).await.unwrap();
            assert_eq!(results.done, done);
            assert_eq!(*calls.lock().unwrap(), [100, 100, 1, 1]);
            assert_eq!(results.end(202, "rejected").is_ok(), done == 202);
        }
    }
}
