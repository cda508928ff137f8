//! A batch payment from a file: the form, what is wrong with the file, and the batch that is made of it.

use std::convert::Infallible;

use askama::Template;
use axum::http::{StatusCode, header};
use covault_actors::{
    chain_rpc::ChainKey,
    operations::{CreateBatchPayment, GetWalletInfo, GetWalletList},
    users::SignedIn,
};
use covault_core::{
    fault::{Class, Fault},
    networks::Network,
    schema::wire::{self, wallet::Status},
};
use futures::stream;
use multer::Multipart;

use super::{
    ConsoleCall,
    batches::check_role,
    facts,
    facts::SaidOfToken,
    pages::vault_names,
    response::{PageError, PageResponse},
    sessions,
    text::Text,
    views::{ChoiceView, Shell},
};
use crate::{
    batch_sheet::{self, PaidAsset, PaymentSheet},
    units::{coin, in_units},
};

/// The largest body of a form with a file.
///
/// It may have the text of before beside the fixed file.
pub const MAX_UPLOAD: usize = 2 * batch_sheet::MAX_BYTES + (64 << 10);
/// The address of nobody on EVM chains.
const NOBODY: &str = "0x0000000000000000000000000000000000000000";
/// Fields of a form at most.
const FIELDS: usize = 20;
/// Wallets of the list, and pages of a vault's wallets that are looked through for them.
const WALLETS: usize = 100;
const PAGES: i64 = 20;
/// Most decimals that an amount of 256 bits can have.
const MOST_DECIMALS: usize = 77;

#[derive(Template)]
#[template(path = "batch-new.html")]
struct UploadPage {
    shell: Shell,
    vaults: Vec<ChoiceView>,
    /// The address, and what is said of the wallet.
    wallets: Vec<(String, Text, bool)>,
    /// The vault has more wallets than are listed.
    has_more: bool,
    chains: Vec<(u64, bool)>,
    form: UploadForm,
    /// What is wrong with the form as a whole.
    problem: Text,
    sheet: Option<SheetView>,
    /// The page has the one form that makes it, and none for another file.
    can_be_made: bool,
    /// Of this form, so that it makes one batch however often it is sent.
    key: String,
}

/// What the person has given.
#[derive(Default)]
struct UploadForm {
    form_token: String,
    vault: String,
    from: String,
    chain: String,
    token: String,
    in_smallest: bool,
    /// Of a token, as the person says.
    decimals: String,
    /// What the checked page has shown: the total in the smallest unit, and the decimals of the file's amounts.
    total: String,
    read_with: String,
    name: String,
    notes: String,
    /// The file, as text.
    text: String,
    file: Vec<u8>,
    /// A file was chosen, and nothing is in it.
    is_empty: bool,
    /// Who is paid twice is meant to be.
    duplicates: bool,
    key: String,
}

/// What a file says.
struct SheetView {
    problems: Vec<(usize, &'static str, Text)>,
    /// Whose amounts those of the rows are.
    amounts: &'static str,
    rows: Vec<UploadRow>,
    duplicates: usize,
    total: String,
    smallest: String,
    by_chain: Text,
    asset: Text,
    /// How amounts of the file were read.
    read_as: String,
    decimals: usize,
    /// Who pays, and where.
    from: Text,
    wallet: Text,
    vault: Text,
    place: String,
    /// What speaks against it before it is made; empty: nothing.
    warning: &'static str,
}

struct UploadRow {
    number: usize,
    recipient: Text,
    /// As it stands in the file.
    amount: Text,
    smallest: String,
    in_units: String,
    by_chain: String,
    notes: Text,
    is_formula: bool,
    again: Option<usize>,
    /// A recipient that is hardly meant; empty otherwise.
    odd: &'static str,
    is_bad: bool,
}

/// What is paid by which wallet.
struct UploadChoice {
    wallet: wire::Wallet,
    paid: PaidAsset,
    said: Option<SaidOfToken>,
    decimals: usize,
    read_as: String,
}

pub async fn page(call: &ConsoleCall<'_>, signed_in: &SignedIn) -> Result<PageResponse, PageError> {
    check_role(signed_in)?;
    let form = UploadForm {
        vault: call.parameter("vault"),
        from: call.parameter("from"),
        ..UploadForm::default()
    };
    show(call, signed_in, form, None, "").await
}

/// Reads a file and says what it would pay, or what is wrong with it. Nothing is stored.
pub async fn check(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    let form = read(call, signed_in).await?;
    match sheet_of(call, signed_in, &form).await {
        Ok((_, _, shown)) => {
            let is_bad = !shown.problems.is_empty();
            let page = show(call, signed_in, form, Some(shown), "").await?;
            Ok(match is_bad {
                true => page.with_status(StatusCode::UNPROCESSABLE_ENTITY),
                false => page,
            })
        }
        Err(fault) => refuse(call, signed_in, form, fault).await,
    }
}

/// Makes the batch of a file that was checked. It is checked again.
pub async fn create(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    let form = read(call, signed_in).await?;
    let (chosen, sheet, shown) = match sheet_of(call, signed_in, &form).await {
        Ok(found) => found,
        Err(fault) => return refuse(call, signed_in, form, fault).await,
    };
    let is_as_shown = form.total == shown.smallest && form.read_with == shown.decimals.to_string();
    let problem = match (shown.problems.is_empty(), shown.duplicates) {
        (false, _) => Some("The file has mistakes; nothing was created."),
        (true, _) if !is_as_shown => {
            let problem = "The amounts are no longer those that were checked: check them again. Nothing was created.";
            let page = show(call, signed_in, form, Some(shown), problem).await?;
            return Ok(page.with_status(StatusCode::CONFLICT));
        }
        (true, 1..) if !form.duplicates => Some(
            "A recipient is paid more than once: confirm that this is intended, or correct the file.",
        ),
        _ => None,
    };
    if let Some(problem) = problem {
        let page = show(call, signed_in, form, Some(shown), problem).await?;
        return Ok(page.with_status(StatusCode::UNPROCESSABLE_ENTITY));
    }
    let kind = chosen
        .paid
        .kind(&chosen.wallet.address, sheet.recipients())?;
    let request = wire::CreateBatchPaymentRequest {
        name: form.name.clone(),
        notes: (!form.notes.is_empty()).then(|| form.notes.clone()),
        r#type: Some(kind),
    };
    let caller = call.caller(signed_in);
    let key = Some(form.key.clone()).filter(|key| !key.is_empty());
    let gateway = call.gateway();
    let made = gateway.call_typed::<CreateBatchPayment>(&caller, &request, key);
    match made.await {
        Ok((made, _)) => {
            let uuid = made.batch_payment.unwrap_or_default().uuid;
            PageResponse::see_page(&format!("/batches/{uuid}"))
        }
        Err(fault) => refuse(call, signed_in, form, fault).await,
    }
}

/// The page again with what is wrong, so that nothing has to be typed twice.
async fn refuse(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    form: UploadForm,
    fault: Fault,
) -> Result<PageResponse, PageError> {
    if !matches!(fault.class(), Class::Invalid | Class::WrongState) {
        return Err(fault.into());
    }
    let page = show(call, signed_in, form, None, fault.message()).await?;
    Ok(page.with_status(StatusCode::UNPROCESSABLE_ENTITY))
}

/// The fields of a form with a file.
async fn read(call: &ConsoleCall<'_>, signed_in: &SignedIn) -> Result<UploadForm, PageError> {
    let wrong = |status, problem: &str| PageError::new(status, problem);
    let kind = call.head.headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let boundary = multer::parse_boundary(kind).map_err(|_| {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        wrong(
            status,
            "send the form as the page does: multipart/form-data",
        )
    })?;
    let body = call.body.clone();
    let body = stream::once(async move { Ok::<_, Infallible>(body) });
    let mut parts = Multipart::new(body, boundary);
    let broken = |_| wrong(StatusCode::BAD_REQUEST, "the form did not arrive whole");
    let mut form = UploadForm::default();
    let mut fields = 0_usize;
    while let Some(part) = parts.next_field().await.map_err(broken)? {
        fields = fields.saturating_add(1);
        if fields > FIELDS {
            return Err(wrong(
                StatusCode::BAD_REQUEST,
                "the form has too many fields",
            ));
        }
        let name = part.name().unwrap_or_default().to_owned();
        let is_chosen = part.file_name().is_some_and(|name| !name.is_empty());
        let bytes = part.bytes().await.map_err(broken)?;
        if name == "file" {
            form.is_empty = is_chosen && bytes.is_empty();
            form.file = bytes.to_vec();
            continue;
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let line = || text.trim().to_owned();
        match name.as_str() {
            "form_token" => form.form_token = text,
            "vault" => form.vault = line(),
            "from" => form.from = line(),
            "chain" => form.chain = line(),
            "token" => form.token = line(),
            "unit" => form.in_smallest = text == "smallest",
            "decimals" => form.decimals = line(),
            "total" => form.total = text,
            "read_with" => form.read_with = text,
            "name" => form.name = line(),
            "notes" => form.notes = line(),
            // Browsers write line ends of their own.
            "text" => form.text = text.replace("\r\n", "\n"),
            "duplicates" => form.duplicates = text == "yes",
            "key" => form.key = text,
            _ => {}
        }
    }
    sessions::check_form(signed_in, &form.form_token)?;
    check_role(signed_in)?;
    // A file is newer than what the page had before. What cannot be read does not come back as a text.
    if form.is_empty {
        form.text = String::new();
    } else if form.file.is_empty() {
        form.file = form.text.clone().into_bytes();
    } else {
        let text = str::from_utf8(&form.file).unwrap_or_default();
        form.text = text.trim_start_matches('\u{feff}').to_owned();
    }
    Ok(form)
}

/// The wallet of a form, what it pays, and how amounts are written.
async fn chosen(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    form: &UploadForm,
) -> Result<UploadChoice, Fault> {
    if form.from.is_empty() {
        return Err(Fault::field("from", "choose the wallet that pays"));
    }
    let request = wire::GetWalletInfoRequest {
        wallet: Some(wire::get_wallet_info_request::Wallet::Address(
            form.from.clone(),
        )),
    };
    let wallet = call.operation::<GetWalletInfo>(signed_in, &request).await?;
    let wallet = wallet.details.ok_or_else(Fault::invalid_uuid)?;
    let network = Network::from_wire(wallet.network_type());
    let network = network.ok_or_else(|| Fault::bug("a wallet without a network"))?;
    let chain_id = match network {
        Network::Evm => {
            let id = form.chain.parse();
            let id = id.map_err(|_| Fault::field("chain", "choose the chain on which it pays"))?;
            Some(id)
        }
        _ => None,
    };
    let token = match form.token.as_str() {
        "" => None,
        token => {
            let parsed = network.rules().parse_token(token);
            Some(parsed.map_err(|fault| Fault::field("token", fault.message()))?)
        }
    };
    let paid = PaidAsset {
        network,
        chain_id,
        token,
    };
    // Which kinds there are.
    paid.kind(&wallet.address, Vec::new())?;
    let said = match &paid.token {
        Some(token) => facts::token(call, signed_in, ChainKey::of(network, chain_id), token).await,
        None => None,
    };
    let (decimals, read_as) = match &paid.token {
        _ if form.in_smallest => (0, "in the smallest unit".to_owned()),
        None => {
            let (symbol, decimals) = coin(&paid.asset().place);
            (decimals, format!("in {symbol}, with {decimals} decimals"))
        }
        Some(_) => decimals_of(form, network, said.as_ref())?,
    };
    Ok(UploadChoice {
        wallet,
        paid,
        said,
        decimals,
        read_as,
    })
}

/// The decimals of a token, and how amounts are read with them. The person says them: what a contract says, through nodes that
/// may lie, decides about no amount.
fn decimals_of(
    form: &UploadForm,
    network: Network,
    said: Option<&SaidOfToken>,
) -> Result<(usize, String), Fault> {
    let by_contract = match (said, network) {
        (Some(said), _) => format!(
            "its contract says {}, through the chain's nodes",
            said.decimals()
        ),
        (None, Network::Evm) => "its contract does not say".to_owned(),
        (None, _) => "this service does not ask this network for it".to_owned(),
    };
    let given = form.decimals.parse::<usize>().ok();
    let given = given.filter(|given| *given <= MOST_DECIMALS);
    let given = given.ok_or_else(|| {
        let problem = format!(
            "say how many decimals the token has, as its issuer has published it ({by_contract}), or give the amounts in the \
             smallest unit"
        );
        Fault::field("decimals", problem)
    })?;
    match said {
        Some(said) if said.decimals() != given => {
            let problem = format!(
                "you say {given}, and {by_contract}: find out which is right, or give the amounts in the smallest unit"
            );
            Err(Fault::field("decimals", problem))
        }
        _ => Ok((
            given,
            format!("in tokens with {given} decimals, as you say ({by_contract})"),
        )),
    }
}

async fn sheet_of(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    form: &UploadForm,
) -> Result<(UploadChoice, PaymentSheet, SheetView), Fault> {
    if form.is_empty {
        return Err(Fault::field(
            "file",
            "is empty: nothing was read, and nothing was created",
        ));
    }
    let chosen = chosen(call, signed_in, form).await?;
    let mut sheet = batch_sheet::read(&form.file, &chosen.paid, chosen.decimals);
    let caller = call.caller(signed_in);
    let pages = call.gateway().pages(&caller);
    let contract = chosen
        .paid
        .chain_id
        .and_then(|chain| pages.batch_contract(chain));
    if let Some(contract) = contract {
        batch_sheet::refuse_recipient(
            &mut sheet,
            contract,
            "is the batch contract, which gives nothing back",
        );
    }
    if sheet.problems.is_empty() {
        let kind = chosen
            .paid
            .kind(&chosen.wallet.address, sheet.recipients())?;
        batch_sheet::check(&mut sheet, &kind)?;
    }
    let asset = chosen.paid.asset();
    let by_chain = |units| chosen.said.as_ref().map(|said| said.in_units(units));
    let rows = sheet.rows.iter().map(|row| UploadRow {
        number: row.number,
        recipient: Text::new(&row.recipient),
        amount: Text::new(&row.amount),
        smallest: row.units.map(|units| units.to_string()).unwrap_or_default(),
        in_units: row
            .units
            .map(|units| in_units(&asset, units))
            .unwrap_or_default(),
        by_chain: row.units.and_then(by_chain).unwrap_or_default(),
        notes: Text::new(&row.notes),
        is_formula: row.is_formula,
        again: row.again,
        odd: match row.recipient.as_str() {
            own if own == chosen.wallet.address => "the wallet that pays",
            zero if zero == NOBODY => "nobody's address: it is lost",
            _ => "",
        },
        is_bad: sheet.problems.iter().any(|it| it.row == row.number),
    });
    let total = sheet.total();
    let names = vault_names(call, signed_in).await?;
    let vault = names
        .get(&chosen.wallet.vault_uuid)
        .cloned()
        .unwrap_or_default();
    let shown = SheetView {
        from: Text::new(&chosen.wallet.address),
        wallet: Text::new(&chosen.wallet.name),
        vault: Text::new(vault),
        place: asset.place.to_string(),
        decimals: chosen.decimals,
        warning: match (chosen.paid.network, contract) {
            (Network::Evm, None) => {
                "No batch contract is configured for this chain: the batch could not be approved."
            }
            _ => "",
        },
        rows: rows.collect(),
        problems: sheet
            .problems
            .iter()
            .map(|it| (it.row, it.column, Text::new(&it.what)))
            .collect(),
        duplicates: sheet.rows.iter().filter(|row| row.again.is_some()).count(),
        total: in_units(&asset, total),
        smallest: total.to_string(),
        amounts: facts::whose_amounts(chosen.said.as_ref()),
        by_chain: Text::new(by_chain(total).unwrap_or_default()),
        asset: Text::new(asset.to_string()),
        read_as: chosen.read_as.clone(),
    };
    Ok((chosen, sheet, shown))
}

async fn show(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    mut form: UploadForm,
    sheet: Option<SheetView>,
    problem: &str,
) -> Result<PageResponse, PageError> {
    let names = vault_names(call, signed_in).await?;
    let mut by_name: Vec<_> = names.iter().collect();
    by_name.sort_by_key(|(_, name)| *name);
    if !names.contains_key(&form.vault) {
        let first = by_name.first().map(|(uuid, _)| (*uuid).clone());
        form.vault = first.unwrap_or_default();
    }
    let (wallets, has_more) = wallets(call, signed_in, &form).await?;
    let caller = call.caller(signed_in);
    let chains = call.gateway().pages(&caller).chains();
    let chains = chains
        .into_iter()
        .filter_map(|chain| chain.chain_id.filter(|_| chain.network == Network::Evm));
    let chains = chains.map(|id| (id, id.to_string() == form.chain));
    PageResponse::page(&UploadPage {
        shell: Shell::new(signed_in, "batches"),
        vaults: by_name
            .into_iter()
            .map(|(uuid, name)| ChoiceView {
                uuid: uuid.clone(),
                name: Text::new(name),
                chosen: *uuid == form.vault,
            })
            .collect(),
        wallets,
        has_more,
        chains: chains.collect(),
        form,
        problem: Text::new(problem),
        can_be_made: sheet.as_ref().is_some_and(|it| it.problems.is_empty()),
        sheet,
        key: call.id.to_owned(),
    })
}

/// The wallets of the vault that can pay, the chosen one in any case; whether there are more.
async fn wallets(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    form: &UploadForm,
) -> Result<(Vec<(String, Text, bool)>, bool), Fault> {
    let mut wallets = Vec::new();
    if form.vault.is_empty() {
        return Ok((wallets, false));
    }
    let mut has_more = false;
    for page in 1..=PAGES {
        let request = wire::GetWalletListRequest {
            vault_uuid: form.vault.clone(),
            page: Some(page),
            limit: None,
        };
        let found = call.operation::<GetWalletList>(signed_in, &request).await?;
        has_more = !found.details_list.is_empty();
        for wallet in &found.details_list {
            let network = Network::from_wire(wallet.network_type());
            let pays = matches!(
                network,
                Some(Network::Evm | Network::Bitcoin | Network::Sui)
            );
            if !pays || wallet.status() == Status::Archived {
                continue;
            }
            let network = network.map_or("", Network::name);
            let said = format!("{network}: {} {}", wallet.address, wallet.name);
            let is_chosen = wallet.address == form.from;
            wallets.push((wallet.address.clone(), Text::new(said.trim()), is_chosen));
        }
        if !has_more || wallets.len() >= WALLETS {
            break;
        }
    }
    // No other one is chosen in its place.
    if !form.from.is_empty() && !wallets.iter().any(|(_, _, is_chosen)| *is_chosen) {
        wallets.insert(0, (form.from.clone(), Text::new(&form.from), true));
    }
    Ok((wallets, has_more))
}
