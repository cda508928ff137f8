//! What the console does with accounts. None of it is an operation: nobody reaches it over the API.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_core::{
    approval::{ApproverLine, Passkey, WebAuthnAssertion, sign_in_challenge, verify_sign_in},
    audit::AuditChain,
    fault::{Class, Fault},
    ids::UserId,
    user::{
        EnrolledPasskey, FormToken, MAX_PASSKEYS, SecretHash, Session, UsedChallenges, User, device,
    },
};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use tokio::sync::OnceCell;
use zeroize::Zeroizing;

use super::{MAX_SESSIONS, end_sessions, secret, sessions};
use crate::{
    audit::{self, AuditActor, AuditNote},
    services::Services,
    store::{Batch, CommitError, KeySpace, Precondition, rows},
};

/// How long a challenge to sign in can be answered, in milliseconds.
pub const SIGN_IN_MS: u64 = 5 * 60 * 1000;
/// How exact the time of the last request of a session is, in milliseconds: it costs a commit.
const SEEN_MS: u64 = 60_000;
const NONCE: usize = 32;
/// Nonce, end, mark.
const CHALLENGE: usize = NONCE + 8 + 32;

/// The accounts of the store.
pub struct Accounts<'a> {
    pub(crate) services: &'a Services,
    pub(crate) console_key: &'a ConsoleKey,
}

/// What challenges to sign in are marked with, once it was read: it never changes.
#[derive(Default)]
pub(crate) struct ConsoleKey(OnceCell<Zeroizing<[u8; 32]>>);

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub struct Browser<'a> {
    /// What it says of itself.
    pub user_agent: &'a str,
    /// Its address; empty: not known.
    pub address: &'a str,
    /// The id of the request, for the audit log.
    pub request_id: &'a str,
}

/// Whom a link enrols.
#[derive(Clone, Debug)]
pub struct Enrolment {
    /// The user handle.
    pub id: UserId,
    /// The person.
    pub name: String,
    /// What the passkey is to be called.
    pub key_name: String,
    /// Credential ids that the person has: no authenticator is to make a second one.
    pub enrolled: Vec<Vec<u8>>,
}

/// What a passkey signs to sign in.
#[derive(Clone, Debug)]
pub struct SignInChallenge {
    /// To be sent back with the answer. It holds no secret.
    pub token: String,
    /// What the passkey signs.
    pub challenge: [u8; 32],
}

/// What a browser answers.
#[derive(Clone, Debug)]
pub struct SignInAnswer {
    /// As [`SignInChallenge::token`].
    pub token: String,
    /// The credential's id.
    pub credential_id: Vec<u8>,
    /// What the authenticator has kept of whose it is.
    pub user_handle: Vec<u8>,
    /// The signature.
    pub assertion: WebAuthnAssertion,
}

/// Which sessions of a person end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignOut {
    /// That of the browser.
    Here,
    /// All others.
    Elsewhere,
}

/// A person who has signed in.
#[derive(Clone, Debug)]
pub struct SignedIn {
    /// Who.
    pub user: User,
    /// The session.
    pub session: Session,
}

/// What the cookie of a session holds.
struct Cookie {
    user: UserId,
    hash: SecretHash,
}

impl Cookie {
    fn parse(text: &str) -> Option<Self> {
        let bytes = Zeroizing::new(BASE64_URL_SAFE_NO_PAD.decode(text).ok()?);
        let (user, secret) = bytes.split_first_chunk::<16>()?;
        let secret: &[u8; 32] = secret.try_into().ok()?;
        Some(Self {
            user: UserId::from_bytes(*user),
            hash: SecretHash::of(secret),
        })
    }
}

/// A link that cannot be used; nobody learns why.
fn no_link() -> Fault {
    Fault::new(
        Class::Unauthenticated,
        "this link cannot be used: it was used before, has expired, or was replaced by another. Ask for a new one",
    )
}

/// A sign-in that failed; nobody learns why.
fn not_signed_in(cause: impl std::fmt::Display) -> Fault {
    Fault::new(Class::Unauthenticated, "this passkey did not sign you in").caused_by(cause)
}

fn by(user: &User, browser: Browser<'_>) -> AuditActor {
    AuditActor::person(&user.name, browser.request_id)
}

impl Accounts<'_> {
    /// Whom a link enrols. It can be used afterwards, too.
    ///
    /// # Errors
    /// [`Class::Unauthenticated`] when it cannot be used.
    pub async fn enrolment(&self, link: &str) -> Result<Enrolment, Fault> {
        let (user, _, _) = self.of_link(link).await?;
        let passkeys = user.passkeys.iter();
        Ok(Enrolment {
            id: user.id,
            key_name: user.next_key_name(),
            enrolled: passkeys
                .map(|key| key.line.passkey.credential_id.clone())
                .collect(),
            name: user.name,
        })
    }

    async fn of_link(&self, link: &str) -> Result<(User, u64, SecretHash), Fault> {
        let services = self.services;
        let secret = BASE64_URL_SAFE_NO_PAD.decode(link).map_err(|_| no_link())?;
        let secret: Zeroizing<[u8; 32]> = Zeroizing::new(secret.try_into().map_err(|_| no_link())?);
        let hash = SecretHash::of(&secret);
        let id = services.load::<UserId>(&rows::user_link(&hash)).await?;
        let (id, _) = id.ok_or_else(no_link)?;
        let user = services.load::<User>(&rows::user(id)).await?;
        let (user, version) = user
            .filter(|(user, _)| user.takes_link(&hash, services.now_ms()))
            .ok_or_else(no_link)?;
        Ok((user, version, hash))
    }

    /// Enrols a passkey with a link, which is used up then.
    ///
    /// # Errors
    /// [`Class::Unauthenticated`] when the link cannot be used, [`Class::Invalid`] naming the field of the line,
    /// [`Class::Conflict`] when an account has the passkey.
    pub async fn enrol(
        &self,
        link: &str,
        line: ApproverLine,
        browser: Browser<'_>,
    ) -> Result<(), Fault> {
        let services = self.services;
        let (mut user, version, hash) = self.of_link(link).await?;
        line.check()?;
        // The name is part of what the passkey has signed: a line of another person does not fit.
        if line.passkey.name != user.next_key_name() {
            return Err(Fault::field("name", "is not the one that the link is for"));
        }
        if user.passkeys.len() >= MAX_PASSKEYS {
            let problem = format!("{} has {MAX_PASSKEYS} passkeys already", user.name);
            return Err(Fault::new(Class::Conflict, problem));
        }
        let now_ms = services.now_ms();
        let mut batch = Batch::new();
        let words = line.fingerprint()?.join(" ");
        batch.put(
            rows::user_passkey(&line.passkey.credential_id),
            Precondition::Absent,
            rows::encode(&user.id)?,
        );
        batch.delete(rows::user_link(&hash), Precondition::Any);
        AuditNote::new(
            &by(&user, browser),
            audit::user(&user.name),
            "PasskeyEnrolled",
        )
        .fact("passkey", &line.passkey.name)
        .fact("words", words)
        .fact("address", browser.address)
        .fact("device", device(browser.user_agent))
        .add_to(&mut batch, AuditChain::Service, now_ms)?;
        user.link = None;
        user.passkeys.push(EnrolledPasskey {
            line,
            at_ms: now_ms,
        });
        let expected = Precondition::Version(version);
        batch.put(rows::user(user.id), expected, rows::encode(&user)?);
        match services.store.commit(batch).await {
            Ok(()) => Ok(()),
            Err(CommitError::Conflict(key)) if key.space == KeySpace::UserPasskey => Err(
                Fault::new(Class::Conflict, "an account already has this passkey"),
            ),
            // Another one has used the link at the same time.
            Err(CommitError::Conflict(key)) if key.space == KeySpace::User => Err(no_link()),
            Err(error) => Err(error.into()),
        }
    }

    /// What a passkey has to sign to sign in. Nothing is stored of it.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn sign_in_challenge(&self, origin: &str) -> Result<SignInChallenge, Fault> {
        let services = self.services;
        let mut nonce = [0; NONCE];
        services.entropy.fill(&mut nonce);
        let ends_ms = services.now_ms().saturating_add(SIGN_IN_MS);
        let mut token = [nonce.as_slice(), &ends_ms.to_be_bytes()].concat();
        let mark = self.mark(&token).await?.finalize().into_bytes();
        token.extend_from_slice(&mark);
        Ok(SignInChallenge {
            token: BASE64_URL_SAFE_NO_PAD.encode(token),
            challenge: sign_in_challenge(origin, &nonce)?,
        })
    }

    /// What only processes on this store can write.
    async fn mark(&self, bytes: &[u8]) -> Result<Hmac<Sha256>, Fault> {
        // It never changes. Strangers who try to sign in must not have it read each time.
        let key = self
            .console_key
            .0
            .get_or_try_init(|| self.read_console_key());
        let key = key.await?;
        let mut mark = Hmac::<Sha256>::new_from_slice(key.as_slice()).map_err(Fault::bug)?;
        mark.update(b"covault/console-challenge");
        mark.update(bytes);
        Ok(mark)
    }

    /// The key of the store that challenges are marked with, made where there is none.
    async fn read_console_key(&self) -> Result<Zeroizing<[u8; 32]>, Fault> {
        let services = self.services;
        let name = rows::console_key();
        let mut found = services.load::<[u8; 32]>(&name).await?;
        if found.is_none() {
            let new = secret(&*services.entropy);
            let mut batch = Batch::new();
            batch.put(name.clone(), Precondition::Absent, rows::encode(&*new)?);
            match services.store.commit(batch).await {
                // Another process was faster.
                Ok(()) | Err(CommitError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
            found = services.load(&name).await?;
        }
        let (key, _) = found.ok_or_else(|| Fault::bug("the console has no key"))?;
        Ok(Zeroizing::new(key))
    }

    /// The nonce of a challenge of ours that has not expired, and when it does.
    async fn nonce(&self, token: &str) -> Result<([u8; NONCE], u64), Fault> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(token);
        let bytes = bytes.map_err(|_| not_signed_in("the challenge is not base64"))?;
        let bytes: [u8; CHALLENGE] = bytes
            .try_into()
            .map_err(|_| not_signed_in("the challenge has another length"))?;
        let (marked, mark) = bytes.split_at(NONCE + 8);
        let genuine = self.mark(marked).await?.verify_slice(mark);
        genuine.map_err(|_| not_signed_in("the challenge was not issued here"))?;
        let split = marked.split_first_chunk::<NONCE>();
        let (nonce, ends) = split.ok_or_else(|| Fault::bug("a challenge without a nonce"))?;
        let ends_ms = u64::from_be_bytes(ends.try_into().map_err(Fault::bug)?);
        if self.services.now_ms() >= ends_ms {
            return Err(not_signed_in("the challenge has expired"));
        }
        Ok((*nonce, ends_ms))
    }

    /// Whose a passkey is, when anyone's.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn owner(&self, credential_id: &[u8]) -> Result<Option<UserId>, Fault> {
        let name = rows::user_passkey(credential_id);
        let found = self.services.load::<UserId>(&name).await?;
        Ok(found.map(|(id, _)| id))
    }

    /// Signs a person in: begins a session, in place of `before`, a cookie that the browser had. The cookie.
    ///
    /// # Errors
    /// [`Class::Unauthenticated`], which does not say why.
    pub async fn sign_in(
        &self,
        origin: &str,
        answer: &SignInAnswer,
        before: Option<&str>,
        browser: Browser<'_>,
    ) -> Result<Zeroizing<String>, Fault> {
        let services = self.services;
        let (nonce, ends_ms) = self.nonce(&answer.token).await?;
        let challenge = sign_in_challenge(origin, &nonce)?;
        let (user, version, passkey) = self.check_answer(answer, &challenge).await?;
        let id = user.id;
        let now_ms = services.now_ms();
        let used = services
            .load::<UsedChallenges>(&rows::used_challenges(id))
            .await?;
        let (used, expected) = match used {
            Some((used, version)) => (used, Precondition::Version(version)),
            None => (UsedChallenges::default(), Precondition::Absent),
        };
        let used = used.with(nonce, ends_ms, now_ms);
        let used = used.ok_or_else(|| not_signed_in("the challenge was used before"))?;
        let secret = secret(&*services.entropy);
        let session = Session {
            user: id,
            form_token: FormToken(*super::secret(&*services.entropy)),
            created_at_ms: now_ms,
            seen_at_ms: now_ms,
            device: device(browser.user_agent),
            address: browser.address.to_owned(),
            passkey: passkey.name.clone(),
        };
        let mut batch = Batch::new();
        batch.check(rows::user(id), Precondition::Version(version));
        batch.put(rows::used_challenges(id), expected, rows::encode(&used)?);
        let name = rows::user_session(id, &SecretHash::of(&secret));
        batch.put(name, Precondition::Absent, rows::encode(&session)?);
        self.make_room(&mut batch, id, now_ms).await?;
        if let Some(before) = before.and_then(Cookie::parse) {
            let before = rows::user_session(before.user, &before.hash);
            // Each row once.
            if !batch.writes().iter().any(|write| write.key == before) {
                batch.delete(before, Precondition::Any);
            }
        }
        AuditNote::new(&by(&user, browser), audit::user(&user.name), "SignedIn")
            .fact("passkey", &session.passkey)
            .fact("address", browser.address)
            .fact("device", &session.device)
            .add_to(&mut batch, AuditChain::Service, now_ms)?;
        match services.store.commit(batch).await {
            Ok(()) => {}
            // Nothing was wrong with the passkey.
            Err(CommitError::Conflict(_)) => {
                let problem = "you signed in elsewhere at the same moment: try again";
                return Err(Fault::new(Class::Conflict, problem));
            }
            Err(error) => return Err(error.into()),
        }
        let cookie = Zeroizing::new([id.as_bytes().as_slice(), secret.as_slice()].concat());
        Ok(Zeroizing::new(BASE64_URL_SAFE_NO_PAD.encode(&*cookie)))
    }

    /// Who has answered, at which version, and with which passkey. A refusal reads and verifies as much whatever is wrong: how
    /// long it takes tells nobody which passkeys have accounts.
    async fn check_answer(
        &self,
        answer: &SignInAnswer,
        challenge: &[u8; 32],
    ) -> Result<(User, u64, Passkey), Fault> {
        let owner = self.owner(&answer.credential_id).await?;
        let id = owner.unwrap_or(UserId::from_bytes([0; 16]));
        let user = self.services.load::<User>(&rows::user(id)).await?;
        let known = user.as_ref().map(|(user, _)| user);
        let passkey = known
            .and_then(|user| user.passkey(&answer.credential_id))
            .map(|enrolled| enrolled.line.passkey.clone());
        let signed = verify_sign_in(passkey.as_ref(), &answer.assertion, challenge);
        // The authenticator says whose it took it for; it must be who has it here.
        if answer.user_handle != id.as_bytes() {
            return Err(not_signed_in("the user handle is another account's"));
        }
        let (user, version) = user
            .filter(|(user, _)| user.is_active())
            .ok_or_else(|| not_signed_in("no account, or one that was revoked"))?;
        let passkey = passkey.ok_or_else(|| not_signed_in("not a passkey of the account"))?;
        signed.map_err(|fault| not_signed_in(fault.message()))?;
        Ok((user, version, passkey))
    }

    /// Deletes sessions that are over, and the oldest where there are too many.
    async fn make_room(&self, batch: &mut Batch, user: UserId, now_ms: u64) -> Result<(), Fault> {
        let mut known = sessions(self.services, user).await?;
        known.sort_by_key(|(_, session)| session.created_at_ms);
        let most = known.len().saturating_sub(MAX_SESSIONS.saturating_sub(1));
        for (place, (key, session)) in known.into_iter().enumerate() {
            if place < most || !session.holds(now_ms) {
                batch.delete(key, Precondition::Any);
            }
        }
        Ok(())
    }

    /// Who has the session of this cookie. Where a person asks it counts as used, so that it continues; what a page asks by
    /// itself must not.
    ///
    /// # Errors
    /// [`Class::Unauthenticated`] when it is no cookie, over, or its account was revoked.
    pub async fn session(&self, cookie: &str, counts: bool) -> Result<SignedIn, Fault> {
        let services = self.services;
        let over = || {
            Fault::new(
                Class::Unauthenticated,
                "sign in: there is no session, or it has ended",
            )
        };
        let cookie = Cookie::parse(cookie).ok_or_else(over)?;
        let name = rows::user_session(cookie.user, &cookie.hash);
        let now_ms = services.now_ms();
        let found = services.load::<Session>(&name).await?;
        let (mut session, version) = found
            .filter(|(session, _)| session.holds(now_ms))
            .ok_or_else(over)?;
        let user = services.load::<User>(&rows::user(cookie.user)).await?;
        let (user, _) = user.filter(|(user, _)| user.is_active()).ok_or_else(over)?;
        if counts && now_ms.saturating_sub(session.seen_at_ms) >= SEEN_MS {
            session.seen_at_ms = now_ms;
            let mut batch = Batch::new();
            batch.put(
                name.clone(),
                Precondition::Version(version),
                rows::encode(&session)?,
            );
            match services.store.commit(batch).await {
                Ok(()) => {}
                // Another request of the session was faster, or has ended it.
                Err(CommitError::Conflict(_)) => {
                    let found = services.load::<Session>(&name).await?;
                    let found = found.map(|(session, _)| session);
                    let found = found.filter(|session| session.holds(now_ms));
                    session = found.ok_or_else(over)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(SignedIn { user, session })
    }

    /// Whether a session still holds. It does not count as used.
    ///
    /// # Errors
    /// As [`Accounts::session`].
    pub async fn recheck(&self, signed_in: &SignedIn, cookie: &str) -> Result<(), Fault> {
        let over = || Fault::new(Class::Unauthenticated, "the session has ended");
        let cookie = Cookie::parse(cookie).ok_or_else(over)?;
        let name = rows::user_session(cookie.user, &cookie.hash);
        let session = self.services.load::<Session>(&name).await?;
        let holds = session.is_some_and(|(session, _)| session.holds(self.services.now_ms()));
        let user = self.services.load::<User>(&rows::user(cookie.user)).await?;
        let same = user.is_some_and(|(user, _)| user == signed_in.user);
        if holds && same { Ok(()) } else { Err(over()) }
    }

    /// The sessions of a person that hold, the newest first, and which of them is that of the cookie.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn sessions(
        &self,
        signed_in: &SignedIn,
        cookie: &str,
    ) -> Result<Vec<(Session, bool)>, Fault> {
        let now_ms = self.services.now_ms();
        let own = Cookie::parse(cookie).map(|it| rows::user_session(it.user, &it.hash));
        let mut known = sessions(self.services, signed_in.user.id).await?;
        known.retain(|(_, session)| session.holds(now_ms));
        known.sort_by_key(|(_, session)| std::cmp::Reverse(session.created_at_ms));
        let is_own = |(key, session)| (session, own.as_ref() == Some(&key));
        Ok(known.into_iter().map(is_own).collect())
    }

    /// Ends sessions of a person: that of the cookie, or all others.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn sign_out(
        &self,
        signed_in: &SignedIn,
        cookie: &str,
        which: SignOut,
        browser: Browser<'_>,
    ) -> Result<(), Fault> {
        let own = Cookie::parse(cookie).map(|it| rows::user_session(it.user, &it.hash));
        let mut known = sessions(self.services, signed_in.user.id).await?;
        known.retain(|(key, _)| (own.as_ref() == Some(key)) == (which == SignOut::Here));
        let by = by(&signed_in.user, browser);
        end_sessions(self.services, &signed_in.user.name, known, &by).await
    }
}
