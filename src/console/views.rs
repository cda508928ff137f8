//! The pages, as their templates take them. What is a [`Text`] comes from others; what is a `String` was made here.

use std::collections::BTreeMap;

use askama::Template;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_actors::users::SignedIn;
use covault_core::{
    amount::U256,
    networks::{evm, outflow},
    user::UserRole,
};

use super::{
    assets::{SCRIPT, STYLE, StaticAsset},
    fee_estimates::FeeView,
    text::{SpendView, Text, Time},
};
use crate::{approving::ContractCheck, units::in_units};

/// Payments of a request that are listed. More are in no batch; a call of a contract may have thousands.
pub const SPENDS: usize = 300;
/// Payments of a request that a table shows.
const FEW: usize = 3;

/// What surrounds every page.
pub struct Shell {
    /// How it looks.
    pub style: &'static StaticAsset,
    /// What it does.
    pub script: &'static StaticAsset,
    /// Which part of the console it is.
    pub part: &'static str,
    /// Who has signed in.
    pub person: Option<PersonView>,
    /// The signer node that serves it; `None`: it is a page of the console.
    pub node: Option<Text>,
}

/// Who has signed in.
pub struct PersonView {
    pub name: Text,
    pub role: &'static str,
    pub form_token: String,
    /// Nodes, tokens, users and settings.
    pub is_operator: bool,
    pub is_auditor: bool,
}

impl Shell {
    /// Of a page for those who have signed in.
    pub fn new(signed_in: &SignedIn, part: &'static str) -> Self {
        let role = signed_in.user.role;
        Self {
            style: &STYLE,
            script: &SCRIPT,
            part,
            person: Some(PersonView {
                name: Text::new(&signed_in.user.name),
                role: role.name(),
                form_token: form_token_of(signed_in),
                is_operator: role == UserRole::Operator,
                is_auditor: role == UserRole::Auditor,
            }),
            node: None,
        }
    }

    /// Of a page for everyone.
    pub fn outside() -> Self {
        Self {
            style: &STYLE,
            script: &SCRIPT,
            part: "",
            person: None,
            node: None,
        }
    }

    /// The token of this session's forms.
    pub fn form_token(&self) -> &str {
        self.person.as_ref().map_or("", |it| &it.form_token)
    }
}

/// What the forms of a session hold.
pub fn form_token_of(signed_in: &SignedIn) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(signed_in.session.form_token.0)
}

#[derive(Template)]
#[template(path = "error.html")]
pub struct ErrorPage {
    pub shell: Shell,
    pub status: u16,
    pub sentence: Text,
}

#[derive(Template)]
#[template(path = "sign-in.html")]
pub struct SignInPage {
    pub shell: Shell,
}

#[derive(Template)]
#[template(path = "enrol.html")]
pub struct EnrolPage {
    pub shell: Shell,
}

/// What waits.
#[derive(Template)]
#[template(path = "inbox.html")]
pub struct InboxPage {
    pub shell: Shell,
    /// How many wait for this person, `100+` where there are more; empty where nobody knows.
    pub count: String,
    /// It lists what waits for this person, and not all that waits.
    pub is_mine: bool,
    /// Which ones this page was made of ([`super::listing::mark`]), where it is the first.
    pub pending: Option<String>,
    pub requests: Vec<RequestView>,
    /// What the next page is asked with, where one follows.
    pub next: Option<String>,
    pub may_approve: bool,
}

/// A signing request.
pub struct RequestView {
    pub uuid: String,
    /// What gestures are bound to ([`super::requests::shown_hash`]); empty where it does not wait.
    pub shown: String,
    /// `evmSendNative`
    pub kind: Text,
    /// `pending`, `succeeded`, `failed`
    pub status: String,
    /// For people.
    pub waits: bool,
    /// This person has approved it, and that counts.
    pub is_mine: bool,
    /// Signers hold it: enough have approved, and it continues by itself unless someone rejects it.
    pub is_held: bool,
    /// Why this person may approve it again; empty otherwise.
    pub again: &'static str,
    pub vault: Text,
    pub vault_uuid: String,
    pub network: Text,
    pub wallet: Text,
    pub spends: Vec<SpendView>,
    /// How many more there are.
    pub more_spends: usize,
    /// What leaves in all of them, by asset.
    pub sums: Vec<(outflow::Asset, U256)>,
    /// A sentence, where more may happen than is listed; empty otherwise.
    pub caution: &'static str,
    /// The batch payment that the service made it for; empty without one.
    pub batch_uuid: Text,
    /// The request that was to pay the same before; on the pages of requests.
    pub earlier_try: EarlierTry,
    /// What it would do as a part of a batch payment, and with which contract of which chain.
    pub batch_part: Option<(u64, evm::Address, evm::batch::BatchPart)>,
    /// What it pays if that is a batch contract.
    pub batch_spends: Vec<outflow::Spend>,
    /// Whether that contract is the right one; where the page is about a few requests.
    pub contract: Option<ContractCheck>,
    pub fields: Vec<(Text, Text)>,
    /// What stands before each, and the content.
    pub contents: Vec<(&'static str, Text)>,
    pub notes: Text,
    pub created: Time,
    pub expires: Option<Time>,
    pub payload_hash: String,
    pub payload_words: String,
    pub approvals: Vec<ApprovalView>,
    pub required: u32,
    pub remaining: u32,
    /// What signers say that they want or hold, each on its own.
    pub wanted: Vec<Text>,
    /// What a chain node says that the transaction would do, field by field.
    pub simulation: Vec<(Text, Text)>,
    /// Who has to agree, and how the signers are doing; where the page is about this request alone.
    pub rule: Option<RuleView>,
    pub function: Text,
    pub arguments: Vec<(Text, Text)>,
    /// `None`: it pays none.
    pub fee: Option<FeeView>,
    pub failed: Text,
    pub tx_hash: Text,
    /// What became of its transaction on its chain; `None` until a chain node has accepted it.
    pub on_chain: Option<OnChainView>,
    pub replaces: Text,
    /// The requests that were made to replace its transaction.
    pub replaced_by: Vec<Text>,
    /// Why it cannot be shown and approved; empty otherwise.
    pub problem: Text,
}

impl RequestView {
    /// Lists what it pays.
    pub fn list(&mut self, spends: &[outflow::Spend]) {
        self.spends = spends.iter().take(SPENDS).map(SpendView::new).collect();
        self.more_spends = spends.len().saturating_sub(SPENDS);
        self.sums = sums_of(spends);
    }

    /// What leaves in all of its payments, in words.
    pub fn all_sums(&self) -> Vec<TotalView> {
        let sum = |(asset, amount): &(outflow::Asset, U256)| TotalView {
            what: Text::new(asset.to_string()),
            amount: in_units(asset, *amount),
            smallest: amount.to_string(),
        };
        self.sums.iter().map(sum).collect()
    }

    /// Whether it waits for people, also where it cannot be shown.
    pub fn is_asked(&self) -> bool {
        !self.shown.is_empty()
    }

    /// Whether an approval by this person would do something.
    pub fn is_offered(&self) -> bool {
        self.waits && !self.is_mine && !self.is_held
    }

    /// As tables show it: of many payments only the first.
    pub fn with_few_spends(mut self) -> Self {
        let cut = self.spends.len().saturating_sub(FEW);
        self.more_spends = self.more_spends.saturating_add(cut);
        self.spends.truncate(FEW);
        self
    }

    /// As lists show it: long texts are cut, and what only its own page shows is left out.
    pub fn in_a_list(mut self) -> Self {
        self.fields = Vec::new();
        self.arguments = Vec::new();
        self.simulation = Vec::new();
        for (_, said) in &mut self.contents {
            *said = std::mem::take(said).shortened();
        }
        self.notes = self.notes.shortened();
        self.failed = self.failed.shortened();
        self
    }
}

/// What leaves in all, by asset.
pub fn sums_of(spends: &[outflow::Spend]) -> Vec<(outflow::Asset, U256)> {
    let mut sums: BTreeMap<&outflow::Asset, U256> = BTreeMap::new();
    for spend in spends {
        let sum = sums.entry(&spend.asset).or_default();
        *sum = sum.saturating_add(spend.amount);
    }
    let sums = sums.into_iter();
    sums.map(|(asset, sum)| (asset.clone(), sum)).collect()
}

/// What became of a transaction on its chain.
pub struct OnChainView {
    /// `pending`, `mined`, `final`, `reverted`, `replaced`, `dropped`, `partial`
    pub word: &'static str,
    pub sentence: Text,
    /// It did not do what was asked for.
    pub is_bad: bool,
}

/// Who has to agree to a request.
pub struct RuleView {
    /// The vault's rule when the request came.
    pub words: Text,
    /// Who may approve and has not, so that it counts now.
    pub missing: Text,
    pub held_until: Option<Time>,
    pub threshold: u32,
    /// Names, and how they are doing.
    pub signers: Vec<(Text, String)>,
}

/// The newest request before one that was to pay the same rows of its batch payment.
pub enum EarlierTry {
    /// It is the first, or pays none.
    None,
    /// That one, and its status.
    Made { uuid: String, status: String },
    /// Nobody could say.
    Unknown,
}

/// The highest fees of all payments on a chain, to be named together.
pub struct FeePlaceView {
    pub place: String,
    pub unit: &'static str,
    pub payments: usize,
}

impl FeePlaceView {
    /// The chains on which several of these pay a fee.
    pub fn of<'a>(requests: impl Iterator<Item = &'a RequestView>) -> Vec<Self> {
        let mut places: BTreeMap<&str, Self> = BTreeMap::new();
        for fee in requests.filter_map(|it| it.fee.as_ref()) {
            let place = places.entry(&fee.place).or_insert_with(|| Self {
                place: fee.place.clone(),
                unit: fee.unit,
                payments: 0,
            });
            place.payments = place.payments.saturating_add(1);
        }
        places
            .into_values()
            .filter(|place| place.payments > 1)
            .collect()
    }
}

/// An approval that was given.
pub struct ApprovalView {
    pub person: Text,
    pub at: Time,
    pub until: Time,
    /// In coins; empty where no fee is paid.
    pub most_fee: String,
}

/// One or several requests, to be decided on together.
#[derive(Template)]
#[template(path = "requests.html")]
pub struct RequestsPage {
    pub shell: Shell,
    pub requests: Vec<RequestView>,
    pub has_totals: bool,
    pub totals: Vec<TotalView>,
    /// How many of them may move more than these sums.
    pub unsummed: usize,
    /// The chains of which several pay a fee.
    pub fee_places: Vec<FeePlaceView>,
    /// Those that were chosen, too, and cannot be approved by this person; why.
    pub left_out: Vec<(String, &'static str)>,
    pub can_approve: bool,
    /// The only one was approved by this person before.
    pub is_again: bool,
    pub can_reject: bool,
}

/// What leaves the wallets together, of one asset or as fees.
pub struct TotalView {
    pub amount: String,
    pub smallest: String,
    pub what: Text,
}

/// A vault to choose.
pub struct ChoiceView {
    pub uuid: String,
    pub name: Text,
    pub chosen: bool,
}

#[derive(Template)]
#[template(path = "account.html")]
pub struct AccountPage {
    pub shell: Shell,
    pub passkeys: Vec<PasskeyView>,
    pub sessions: Vec<SessionView>,
}

/// A session of the person.
pub struct SessionView {
    /// Whether it is that of this page.
    pub here: bool,
    pub began: Time,
    pub seen: Time,
    pub device: Text,
    pub address: Text,
    pub passkey: Text,
}

/// A passkey of the person.
pub struct PasskeyView {
    pub name: Text,
    pub at: Time,
    pub line: Text,
    pub words: String,
    pub synced: bool,
}
