//! The settings that apply in this process.

use askama::Template;
use covault_actors::users::SignedIn;
use covault_core::{token::TokenVaults, user::UserRole};

use super::{
    ConsoleCall, forbidden,
    response::{PageError, PageResponse},
    text::Text,
    views::Shell,
};

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsPage {
    shell: Shell,
    tables: Vec<TableView>,
}

/// The settings of one table of the configuration.
struct TableView {
    name: Text,
    settings: Vec<SettingView>,
}

struct SettingView {
    path: Text,
    value: Text,
    origin: Text,
    is_default: bool,
}

/// Those of the whole service: for operators who see all vaults.
pub fn page(call: &ConsoleCall<'_>, signed_in: &SignedIn) -> Result<PageResponse, PageError> {
    let user = &signed_in.user;
    if user.role != UserRole::Operator || user.vaults != TokenVaults::All {
        return Err(forbidden(
            "only operators who see all vaults see the settings",
        ));
    }
    let mut tables: Vec<TableView> = Vec::new();
    for setting in &call.console.settings {
        let (name, _) = setting.path.rsplit_once('.').unwrap_or_default();
        let name = Text::new(name);
        let view = SettingView {
            path: Text::new(&setting.path),
            value: Text::new(&setting.value),
            origin: Text::new(&setting.origin),
            is_default: setting.origin == "default",
        };
        match tables.last_mut().filter(|table| table.name == name) {
            Some(table) => table.settings.push(view),
            None => tables.push(TableView {
                name,
                settings: vec![view],
            }),
        }
    }
    PageResponse::page(&SettingsPage {
        shell: Shell::new(signed_in, "settings"),
        tables,
    })
}
