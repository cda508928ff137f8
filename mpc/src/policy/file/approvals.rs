//! The people of a policy file, and what they have to approve.

use std::collections::BTreeSet;

use covault_core::{
    approval::{ApprovalWay, ApproverKey, Approvers},
    fault::{Class, Fault},
    field::label,
    wallet::MAX_NAME,
};
use toml::Value;

use super::{TableReader, kind, place, wrong};
use crate::policy::{
    AmountLimit,
    approvals::{ApprovalHold, ApprovalRequirement, HOLD_HOURS},
};

/// The people, each with at least one key.
pub(super) fn approvers(keys: &mut TableReader) -> Result<Approvers, Fault> {
    let origins = keys.list("node_origins", |text| Ok(text.to_owned()))?;
    let mut approvers = Approvers::with_node_origins(origins.unwrap_or_default());
    for (path, mut keys) in keys.tables("approver")? {
        let name = keys.required_text("name", "e.g. \"treasurer\"")?;
        if name.trim().is_empty() || name.contains([',', ';']) {
            return Err(wrong(
                format_args!("{path}.name"),
                "must be a name without commas",
            ));
        }
        // As the rule of a vault names the same person.
        label("name", &name, MAX_NAME).map_err(|fault| fault.with_prefix(&path))?;
        if approvers.knows(&name) {
            return Err(wrong(
                format_args!("{path}.name"),
                format_args!("{name} is already an approver: list all of its keys in one place"),
            ));
        }
        let (at, lines) = keys.texts("keys")?;
        if lines.is_empty() {
            return Err(wrong(at, "must name at least one key"));
        }
        for (place, line) in lines.iter().enumerate() {
            let added = ApproverKey::parse(line).and_then(|key| approvers.add(&name, key));
            added.map_err(|fault| wrong(format_args!("{at}[{place}]"), fault.message()))?;
        }
        keys.finish()?;
    }
    Ok(approvers)
}

pub(super) fn approvals(
    keys: &mut TableReader,
    approvers: &Approvers,
) -> Result<Vec<ApprovalRequirement>, Fault> {
    let tables = keys.tables("approval")?;
    tables
        .into_iter()
        .map(|(path, keys)| approval(&path, keys, approvers))
        .collect()
}

fn approval(
    path: &str,
    mut keys: TableReader,
    approvers: &Approvers,
) -> Result<ApprovalRequirement, Fault> {
    let above = match keys.take("above") {
        None => None,
        Some((path, Value::Table(table))) => {
            let mut keys = TableReader::of(format!("{path}."), table);
            let above = keys.amount_limit()?;
            keys.finish()?;
            if above.1 == AmountLimit::default() {
                return Err(wrong(path, "needs per_request, per_day or both"));
            }
            Some(above)
        }
        Some((path, _)) => {
            return Err(wrong(
                path,
                "must be a table, e.g. { asset = \"evm:1\", per_request = \"1\" }",
            ));
        }
    };
    let needs = match keys.take("needs") {
        Some((_, Value::Integer(needs))) if needs > 0 => {
            usize::try_from(needs).unwrap_or(usize::MAX)
        }
        Some((path, _)) => return Err(wrong(path, "must be a number of people, at least 1")),
        None => return Err(wrong(format_args!("{path}.needs"), "is required, e.g. 2")),
    };
    let (at, of) = keys.texts("of")?;
    for (place, name) in of.iter().enumerate() {
        let at = format_args!("{at}[{place}]").to_string();
        if !approvers.knows(name) {
            return Err(wrong(
                at,
                format_args!("{name} is not the name of an [[approver]]"),
            ));
        }
        if of.iter().take(place).any(|other| other == name) {
            return Err(wrong(at, format_args!("names {name} twice")));
        }
    }
    // What nothing meets would be a rule that never applies, and looks as if it did.
    let never = |field: &str, problem: &str| wrong(format_args!("{path}.{field}"), problem);
    let networks = keys.list("networks", place)?;
    let kinds = keys.list("kinds", kind)?;
    let empty = "must name at least one; left out, the rule holds for all";
    if networks.as_ref().is_some_and(BTreeSet::is_empty) {
        return Err(never("networks", empty));
    }
    if kinds.as_ref().is_some_and(BTreeSet::is_empty) {
        return Err(never("kinds", empty));
    }
    if let (Some(networks), Some((asset, _))) = (&networks, &above)
        && !networks.iter().any(|place| place.meets(&asset.place))
    {
        return Err(never("above.asset", "is on none of the rule's networks"));
    }
    let rule = ApprovalRequirement {
        networks,
        kinds,
        above,
        needs,
        of,
        synced_passkeys: keys.switch("synced_passkeys")?.unwrap_or(true),
        ways: keys.list("way", way)?,
        hold: hold(&mut keys)?,
    };
    keys.finish()?;
    // It says yes while the transaction is signed: each attempt would begin the time with another request.
    let is_program =
        |ways: &BTreeSet<ApprovalWay>| ways.iter().all(|it| *it == ApprovalWay::Client);
    if rule.hold.is_some() && rule.ways.as_ref().is_some_and(is_program) {
        let problem =
            "cannot hold what only client signers approve: they are asked when it is signed";
        return Err(never("hold_hours", problem));
    }
    // A rule that nobody can meet would be found only when a payment waits.
    let able = rule.of.iter().filter(|name| {
        let mut keys = approvers.keys_of(name);
        keys.any(|key| rule.takes_key(key, approvers))
    });
    let able = able.count();
    if able < needs {
        let sentence = format!(
            "is {needs}, and only {able} of those that `of` names have keys that count here"
        );
        return Err(wrong(format_args!("{path}.needs"), sentence));
    }
    Ok(rule)
}

fn hold(keys: &mut TableReader) -> Result<Option<ApprovalHold>, Fault> {
    let only_new = keys.take("hold_only_new_recipients");
    let only_new_recipients = match &only_new {
        None => false,
        Some((_, Value::Boolean(only))) => *only,
        Some((path, _)) => return Err(wrong(path, "must be true or false")),
    };
    let hours = match (keys.take("hold_hours"), only_new) {
        (None, None) => return Ok(None),
        (None, Some((path, _))) => return Err(wrong(path, "says nothing without hold_hours")),
        (Some((_, Value::Integer(hours))), _) if HOLD_HOURS.contains(&hours) => hours,
        (Some((path, _)), _) => {
            let (least, most) = (HOLD_HOURS.start(), HOLD_HOURS.end());
            let problem = format_args!("must be a whole number of hours, {least} to {most}");
            return Err(wrong(path, problem));
        }
    };
    Ok(Some(ApprovalHold {
        hours: hours.unsigned_abs(),
        only_new_recipients,
    }))
}

fn way(text: &str) -> Result<ApprovalWay, Fault> {
    let mut all = ApprovalWay::ALL.into_iter();
    all.find(|way| way.name() == text).ok_or_else(|| {
        let names = ApprovalWay::ALL.map(ApprovalWay::name).join(", ");
        Fault::new(
            Class::Invalid,
            format!("is not a way to approve: use {names}"),
        )
    })
}
