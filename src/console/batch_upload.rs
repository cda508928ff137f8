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
    Call,
    batches::check_role,
    facts,
    facts::SaidOfToken,
    pages::vault_names,
    response::{Answer, Refused},
    sessions,
    text::Text,
    views::{ChoiceView, Shell},
};
use crate::{
    batch_sheet::{self, PaidAsset, Sheet},
    units::{coin, in_units},
};

/// The largest body of a form with a file.
pub const MAX_UPLOAD: usize = batch_sheet::MAX_BYTES + (64 << 10);
/// Fields of a form at most.
const FIELDS: usize = 20;
/// Wallets of the list.
const WALLETS: i64 = 100;

#[derive(Template)]
#[template(path = "batch-new.html")]
struct UploadPage {
    shell: Shell,
    vaults: Vec<ChoiceView>,
    /// The address, and what is said of the wallet.
    wallets: Vec<(String, Text, bool)>,
    chains: Vec<(u64, bool)>,
    form: Form,
    /// What is wrong with the form as a whole.
    problem: Text,
    sheet: Option<SheetView>,
    /// Of this form, so that it makes one batch however often it is sent.
    key: String,
}

/// What the person has given.
#[derive(Default)]
struct Form {
    form_token: String,
    vault: String,
    from: String,
    chain: String,
    token: String,
    in_smallest: bool,
    name: String,
    notes: String,
    /// The file, as text.
    text: String,
    file: Vec<u8>,
    /// Who is paid twice is meant to be.
    duplicates: bool,
    key: String,
}

/// What a file says.
struct SheetView {
    problems: Vec<(usize, &'static str, Text)>,
    rows: Vec<RowView>,
    duplicates: usize,
    total: String,
    smallest: String,
    by_chain: Text,
    asset: Text,
    /// How amounts of the file were read.
    read_as: String,
}

struct RowView {
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
    is_bad: bool,
}

/// What is paid by which wallet.
struct Chosen {
    wallet: wire::Wallet,
    paid: PaidAsset,
    said: Option<SaidOfToken>,
    decimals: usize,
    read_as: String,
}

pub async fn page(call: &Call<'_>, signed_in: &SignedIn) -> Result<Answer, Refused> {
    check_role(signed_in)?;
    let form = Form {
        vault: call.parameter("vault"),
        from: call.parameter("from"),
        ..Form::default()
    };
    show(call, signed_in, form, None, "").await
}

/// Reads a file and says what it would pay, or what is wrong with it. Nothing is stored.
pub async fn check(call: &Call<'_>, signed_in: &SignedIn) -> Result<Answer, Refused> {
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
pub async fn create(call: &Call<'_>, signed_in: &SignedIn) -> Result<Answer, Refused> {
    let form = read(call, signed_in).await?;
    let (chosen, sheet, shown) = match sheet_of(call, signed_in, &form).await {
        Ok(found) => found,
        Err(fault) => return refuse(call, signed_in, form, fault).await,
    };
    let problem = match (shown.problems.is_empty(), shown.duplicates) {
        (false, _) => Some("The file has mistakes; nothing was made of it."),
        (true, 1..) if !form.duplicates => {
            Some("A recipient is paid more than once: say that this is meant, or mend the file.")
        }
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
            Answer::see_page(&format!("/batches/{uuid}"))
        }
        Err(fault) => refuse(call, signed_in, form, fault).await,
    }
}

/// The page again with what is wrong, so that nothing has to be typed twice.
async fn refuse(
    call: &Call<'_>,
    signed_in: &SignedIn,
    form: Form,
    fault: Fault,
) -> Result<Answer, Refused> {
    if !matches!(fault.class(), Class::Invalid | Class::WrongState) {
        return Err(fault.into());
    }
    let page = show(call, signed_in, form, None, fault.message()).await?;
    Ok(page.with_status(StatusCode::UNPROCESSABLE_ENTITY))
}

/// The fields of a form with a file.
async fn read(call: &Call<'_>, signed_in: &SignedIn) -> Result<Form, Refused> {
    let wrong = |status, problem: &str| Refused::new(status, problem);
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
    let mut form = Form::default();
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
        let bytes = part.bytes().await.map_err(broken)?;
        if name == "file" {
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
            "name" => form.name = line(),
            "notes" => form.notes = line(),
            "text" => form.text = text,
            "duplicates" => form.duplicates = text == "yes",
            "key" => form.key = text,
            _ => {}
        }
    }
    sessions::check_form(signed_in, &form.form_token)?;
    check_role(signed_in)?;
    // A file is newer than what the page had before.
    if form.file.is_empty() {
        form.file = form.text.clone().into_bytes();
    } else {
        let text = String::from_utf8_lossy(&form.file);
        form.text = text.trim_start_matches('\u{feff}').to_owned();
    }
    Ok(form)
}

/// The wallet of a form, what it pays, and how amounts are written.
async fn chosen(call: &Call<'_>, signed_in: &SignedIn, form: &Form) -> Result<Chosen, Fault> {
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
    let (decimals, read_as) = match (&paid.token, &said) {
        _ if form.in_smallest => (0, "in the smallest unit".to_owned()),
        (None, _) => {
            let (symbol, decimals) = coin(&paid.asset().place);
            (decimals, format!("in {symbol}, with {decimals} decimals"))
        }
        (Some(_), Some(said)) => {
            let decimals = said.decimals();
            (
                decimals,
                format!(
                    "in tokens with {decimals} decimals, as the token's contract says through the chain's nodes"
                ),
            )
        }
        (Some(_), None) => {
            return Err(Fault::field(
                "unit",
                "the token's contract does not say now how many decimals it has: give the amounts in the smallest unit",
            ));
        }
    };
    Ok(Chosen {
        wallet,
        paid,
        said,
        decimals,
        read_as,
    })
}

async fn sheet_of(
    call: &Call<'_>,
    signed_in: &SignedIn,
    form: &Form,
) -> Result<(Chosen, Sheet, SheetView), Fault> {
    let chosen = chosen(call, signed_in, form).await?;
    let mut sheet = batch_sheet::read(&form.file, &chosen.paid, chosen.decimals);
    if sheet.problems.is_empty() {
        let kind = chosen
            .paid
            .kind(&chosen.wallet.address, sheet.recipients())?;
        batch_sheet::check(&mut sheet, &kind)?;
    }
    let asset = chosen.paid.asset();
    let by_chain = |units| chosen.said.as_ref().map(|said| said.in_units(units));
    let rows = sheet.rows.iter().map(|row| RowView {
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
        is_bad: sheet.problems.iter().any(|it| it.row == row.number),
    });
    let total = sheet.total();
    let shown = SheetView {
        rows: rows.collect(),
        problems: sheet
            .problems
            .iter()
            .map(|it| (it.row, it.column, Text::new(&it.what)))
            .collect(),
        duplicates: sheet.rows.iter().filter(|row| row.again.is_some()).count(),
        total: in_units(&asset, total),
        smallest: total.to_string(),
        by_chain: Text::new(by_chain(total).unwrap_or_default()),
        asset: Text::new(asset.to_string()),
        read_as: chosen.read_as.clone(),
    };
    Ok((chosen, sheet, shown))
}

async fn show(
    call: &Call<'_>,
    signed_in: &SignedIn,
    mut form: Form,
    sheet: Option<SheetView>,
    problem: &str,
) -> Result<Answer, Refused> {
    let names = vault_names(call, signed_in).await?;
    let mut by_name: Vec<_> = names.iter().collect();
    by_name.sort_by_key(|(_, name)| *name);
    if !names.contains_key(&form.vault) {
        let first = by_name.first().map(|(uuid, _)| (*uuid).clone());
        form.vault = first.unwrap_or_default();
    }
    let mut wallets = Vec::new();
    if !form.vault.is_empty() {
        let request = wire::GetWalletListRequest {
            vault_uuid: form.vault.clone(),
            page: None,
            limit: Some(WALLETS),
        };
        let found = call.operation::<GetWalletList>(signed_in, &request).await?;
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
    }
    let caller = call.caller(signed_in);
    let chains = call.gateway().pages(&caller).chains();
    let chains = chains
        .into_iter()
        .filter_map(|chain| chain.chain_id.filter(|_| chain.network == Network::Evm));
    let chains = chains.map(|id| (id, id.to_string() == form.chain));
    Answer::page(&UploadPage {
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
        chains: chains.collect(),
        form,
        problem: Text::new(problem),
        sheet,
        key: call.id.to_owned(),
    })
}
